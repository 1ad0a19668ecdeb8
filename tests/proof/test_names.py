from muster.proof.hlo import parse
from muster.proof.names import direction, label, words
from tests.proof.fixtures import program_of

JAX = "jit(train_step)/transpose(jvp())/while/body/eval_jaxpr/checkpoint"


def test_directions() -> None:
    assert direction(f"{JAX}/btf,fd->btd/dot_general") == "backward"
    assert direction(f"{JAX}/rematted_computation/mul") == "recompute"
    assert direction("jit(train_step)/jvp(Model)/decoder/mlp/dot_general") == "forward"
    assert direction("jit(train_step)/mul") == "update"
    assert direction("state.params['head']") == ""
    assert direction("") == ""


def test_words_are_the_models() -> None:
    assert words(f"{JAX}/shard_map/ragged_dot_general/ragged-dot") == (
        "ragged_dot_general/ragged-dot"
    )
    assert words("jit(f)/jit(main)/a/b/c/d/dot_general") == "c/d/dot_general"
    assert words("state.params[\\'head\\']") == "state.params['head']"


NAMES = f"""HloModule m, is_scheduled=true
%f (x: f32[8]) -> f32[8] {{
  %x = f32[8]{{0}} parameter(0)
  %c = f32[8]{{0}} convolution(%x, %x), metadata={{op_name="{JAX}/btd,df->btf/dot_general"}}
  ROOT %n = f32[8]{{0}} negate(%c), metadata={{op_name="{JAX}/neg"}}
}}
ENTRY %main (p: f32[8]) -> f32[8] {{
  %p = f32[8]{{0}} parameter(0), metadata={{op_name="state.params[\\'head\\']"}}
  %b = f32[8]{{0}} bitcast(%p)
  %copy.3 = f32[8]{{0}} copy(%b)
  %kernel.12 = f32[8]{{0}} custom-call(%copy.3), custom_call_target="tpu_custom_call"
  %copy.4 = f32[8]{{0}} copy(%b), metadata={{op_name="{JAX}/convert_element_type"}}
  %zero = f32[] constant(0), metadata={{op_name="jit(step)"}}
  %zeros = f32[8]{{0}} broadcast(%zero), dimensions={{}}
  ROOT %fusion = f32[8]{{0}} fusion(%copy.3), kind=kOutput, calls=%f
}}
"""


def test_labels() -> None:
    program = parse(NAMES)
    main = program.main
    named = {op.name: label(program, op, main, JAX) for op in main.ops}
    assert named["fusion"] == "backward layers btd,df->btf/dot_general"
    assert named["copy.3"] == "backward layers copy of state.params['head']"
    assert named["copy.4"] == "backward layers copy of convert_element_type"
    assert named["kernel.12"] == "backward layers kernel"
    assert named["zeros"] == "backward layers broadcast"
    assert label(program, main.by_name["copy.3"]) == "copy"


def test_functions_of_the_model_are_named() -> None:
    program = program_of("llama-v5p-one-chip")
    labels = {
        label(program, op, computation)
        for computation in program.computations.values()
        for op in computation.ops
        if op.opcode == "fusion"
    }
    assert "forward layers btnh,nhd->btd/dot_general (attention)" in labels
    assert any(each.startswith("update") and "(tree_sum)" in each for each in labels)


def test_what_stands_in_the_layers_loop_is_no_update() -> None:
    assert direction("jit(f)/shard_map/while/body/convert_element_type") == "forward"
    assert direction("jit(f)/jit(_where)/select_n") == "update"


HELPED = f"""HloModule m, is_scheduled=true

FileNames
1 "/somewhere/model.py"
2 "/somewhere/matmul.py"

FunctionNames
1 "gated_mlp.<locals>.project"
2 "einsum_on.<locals>.einsum"

FileLocations
1 {{file_name_id=1 function_name_id=1 line=269 end_line=269 column=14 end_column=14}}
2 {{file_name_id=2 function_name_id=2 line=41 end_line=41 column=14 end_column=14}}

StackFrames
1 {{file_location_id=1 parent_frame_id=1}}
2 {{file_location_id=2 parent_frame_id=2}}

ENTRY %main (p: f32[8]) -> f32[8] {{
  %p = f32[8]{{0}} parameter(0)
  ROOT %c = f32[8]{{0}} convolution(%p, %p), metadata={{op_name="{JAX}/dot" stack_frame_id=2}}
}}
"""


def test_a_matmul_is_named_after_whoever_asked_for_it() -> None:
    program = parse(HELPED)
    assert program.source(program.main.root).startswith("matmul.py:41")
    assert label(program, program.main.root) == "backward layers dot (gated_mlp)"
