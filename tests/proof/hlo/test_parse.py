"""Reading programs: nothing of the text is lost, whatever it is."""

import re
from collections import Counter

import pytest

from muster.errors import BadInput
from muster.proof.hlo import parse
from tests.proof.fixtures import NAMES, program_of, text_of

# An operation begins a line; its opcode follows its shape, which ends in a bracket.
OP = re.compile(r"^\s+(?:ROOT )?%[\w.\-]+ = .*?[\])}] ([a-z][\w\-]*)\(", re.MULTILINE)

SMALL = """HloModule small, is_scheduled=true, num_partitions=4

%inner (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %n = f32[8]{0} negate(%p)
}, execution_thread="sparsecore"

ENTRY %main (a: f32[8]) -> (f32[8], s32[]) {
  %a = f32[8]{0:T(256)} parameter(0), metadata={op_name="batch[\\'x\\']"}
  %odd = f32[8]{0} frobnicate(%a), flavour={1,2}
  %call = f32[8]{0} custom-call(f32[8]{0} %odd), custom_call_target="mystery"
  %k = f32[8]{0} custom-call(%call), custom_call_target="tpu_custom_call", a={
"xprof_metadata":"{\\"block\\": 512, \\"brace\\": \\"}\\"}"
}, metadata={op_name="f/pallas_call" source_file="/a/b.py" source_line=12}, \
backend_config={"window_config":{"estimated_cycles":"7"}}
  %c = s32[] constant({...})
  ROOT %t = (f32[8]{0}, /*index=1*/s32[]) tuple(%k, /*index=1*/%c)
}
"""


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_of_the_text_is_read(name: str) -> None:
    read = Counter(op.opcode for op in program_of(name).ops())
    assert read == Counter(OP.findall(text_of(name)))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_in_a_compiled_program_is_unknown(name: str) -> None:
    program = program_of(name)
    assert program.unknown == Counter()
    assert program.scheduled
    assert program.entry.startswith("main")


@pytest.mark.parametrize("name", NAMES)
def test_every_operand_and_every_call_is_there(name: str) -> None:
    program = program_of(name)
    literals = {"constant", "parameter", "iota"}
    for computation in program.computations.values():
        for op in computation.ops:
            assert set(op.called) <= set(program.computations), op.name
            if op.opcode not in literals:
                assert set(op.operands) <= set(computation.by_name), op.name


def test_unknown_things_are_counted_and_named() -> None:
    program = parse(SMALL)
    assert program.unknown == {"opcode frobnicate": 1, "custom call mystery": 1}
    assert [op.name for op in program.main.ops] == ["a", "odd", "call", "k", "c", "t"]


def test_an_operation_may_span_lines_and_hold_braces_in_strings() -> None:
    kernel = parse(SMALL).main.by_name["k"]
    assert kernel.op_name == "f/pallas_call"
    assert kernel.estimated_cycles == 7
    assert kernel.operands == ("call",)


def test_operands_are_names_with_or_without_shapes() -> None:
    main = parse(SMALL).main
    assert main.by_name["call"].operands == ("odd",)
    assert main.root.operands == ("k", "c")
    assert main.root.is_root


def test_threads_and_attributes() -> None:
    program = parse(SMALL)
    assert program.computations["inner"].thread == "sparsecore"
    assert program.main.thread == ""
    assert program.main.by_name["odd"].attributes == {"flavour": "{1,2}"}
    assert program.source(program.main.by_name["k"]) == "/a/b.py:12"
    assert (program.partitions, program.devices) == (4, 4)


def test_lines_that_mean_nothing_are_counted() -> None:
    program = parse(SMALL.replace("  %odd", "  what is this\n  %odd"))
    assert program.unknown["line that is no operation"] == 1


def test_stack_frames_lead_back_to_the_model() -> None:
    program = program_of("llama-v5p-one-chip")
    op = next(op for op in program.ops() if op.op_name.endswith("btd,df->btf/dot_general"))
    assert program.source(op).endswith("gated_mlp.<locals>.project")
    stack = program.frames[op.frame]
    assert any("decoder_layer" in place for place in stack)
    assert stack[-1] != stack[0]


@pytest.mark.parametrize("text", ["", "hello", "HloModule alone"])
def test_what_is_no_program_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="HLO"):
        parse(text)


def test_a_program_that_is_cut_is_refused() -> None:
    text = text_of("llama-v5p-one-chip")
    with pytest.raises(BadInput, match="the file is cut: no ENTRY computation"):
        parse(text[: text.index("\nENTRY") + 1])
    with pytest.raises(BadInput, match="the file is cut: its ENTRY computation has no end"):
        parse(text[:-200])


def test_a_line_cut_inside_a_bracket_takes_no_other_with_it() -> None:
    count = 20_000
    body = "\n".join(f"  %a{n} = f32[8]{{0}} negate(%x)" for n in range(count))
    text = "HloModule x\n\nENTRY %main (x: f32[8]) -> f32[8] {\n  %c = f32[8]{0} add(%a,\n"
    program = parse(f"{text}{body}\n}}\n")
    assert len(program.main.ops) == count
    assert program.unknown["line that is no operation"] == 1


def test_a_string_that_never_ends_takes_no_other_line_with_it() -> None:
    text = 'HloModule x\n\nENTRY %main () -> f32[8] {\n  %c = f32[8]{0} add(%a), m="\n'
    body = "  %b = f32[8]{0} negate(%c)\n" * 30_000
    assert len(parse(f"{text}{body}}}\n").main.ops) >= 30_000


@pytest.mark.parametrize("layout", ["5", "0,0", "1,0"])
def test_a_layout_beyond_the_rank_is_refused(layout: str) -> None:
    op = f"  ROOT %c = f32[8]{{{layout}:T(8,128)}} parameter(0)"
    with pytest.raises(BadInput, match="does not order its dims"):
        parse(f"HloModule x\n\nENTRY %m () -> f32[8] {{\n{op}\n}}\n")


def test_a_byte_order_mark_and_a_number_that_is_none() -> None:
    assert parse("\ufeff" + SMALL).name == parse(SMALL).name
    with pytest.raises(BadInput, match="not an HLO program"):
        parse(SMALL.replace("num_partitions=4", "num_partitions=many"))


@pytest.mark.parametrize("number", ["0", "-4", "many", "4.5", "9" * 30, "9" * 5000])
@pytest.mark.parametrize("key", ["num_partitions", "replica_count"])
def test_what_is_no_number_of_devices_is_named(key: str, number: str) -> None:
    with pytest.raises(BadInput, match=f"its {key}, .*, is no number of devices") as refused:
        parse(SMALL.replace("num_partitions=4", f"{key}={number}"))
    assert len(str(refused.value)) < 200


def test_a_back_ends_words_that_are_nested_without_end_are_none() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    op = f'  ROOT %c = f32[8]{{0}} negate(%a), backend_config={{"a":{deep}}}'
    assert parse(f"HloModule x\n\nENTRY %m () -> f32[8] {{\n{op}\n}}\n").main.root.backend == {}


def test_a_modules_name_is_shown_as_it_can_be_printed() -> None:
    name = parse(SMALL.replace("small", "\x1b[31msmall\x07")).name
    assert name == "'\\x1b[31msmall\\x07'"


def test_a_bracket_in_a_string_that_goes_on_in_the_next_line_closes_nothing() -> None:
    op = '  ROOT %c = f32[8]{0} negate(%a), metadata={op_name="x}\n  %no = }\ny" source_line=3}'
    program = parse(f"HloModule x\n\nENTRY %m () -> f32[8] {{\n{op}\n}}\n")
    assert [each.name for each in program.main.ops] == ["c"]
    assert program.main.root.op_name == "x}\n  %no = }\ny"
    assert not program.unknown
