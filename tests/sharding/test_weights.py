"""The weight table: formulas evaluate to counts, parts add up to wholes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.models.architecture import (
    LAYER_NORM,
    Architecture,
    Attention,
    Experts,
    ExtraWeight,
    Layer,
    Mlp,
    Norm,
)
from muster.roofline.params import legend, param_counts
from muster.sharding.weights import Weight, weight_table

SIZES = st.integers(1, 64)
BOOLEANS = st.booleans()


@st.composite
def attentions(draw: st.DrawFn) -> Attention:
    kv = draw(st.integers(1, 8))
    return Attention(
        num_heads=kv * draw(st.integers(1, 4)),
        num_kv_heads=kv,
        head_dim=draw(SIZES),
        query_bias=draw(BOOLEANS),
        key_bias=draw(BOOLEANS),
        value_bias=draw(BOOLEANS),
        output_bias=draw(BOOLEANS),
        qk_norm=draw(st.none() | st.just(Norm())),
        qk_norm_over=draw(st.sampled_from(["head", "each_head", "all"])),
        window=draw(st.none() | SIZES),
        sinks=draw(BOOLEANS),
    )


@st.composite
def mlps(draw: st.DrawFn) -> Mlp | Experts:
    if draw(BOOLEANS):
        return Mlp(d_ff=draw(SIZES), gated=draw(BOOLEANS), up_bias=draw(BOOLEANS))
    experts = draw(SIZES)
    return Experts(
        num_experts=experts,
        experts_per_token=draw(st.integers(1, experts)),
        d_ff=draw(SIZES),
        correction_bias=draw(BOOLEANS),
        shared=draw(st.none() | st.just(Mlp(d_ff=3))),
    )


@st.composite
def architectures(draw: st.DrawFn) -> Architecture:
    kinds = draw(st.lists(st.builds(Layer, mixer=attentions(), mlp=mlps()), min_size=1, max_size=3))
    layers = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=6))
    return Architecture(
        name="drawn",
        family="none",
        d_model=draw(SIZES),
        vocab_size=draw(SIZES),
        layers=tuple(layers),
        tied_embeddings=draw(BOOLEANS),
        head_bias=draw(BOOLEANS),
        stores_tied_head=draw(BOOLEANS),
        position_embeddings=draw(st.integers(0, 8)),
    )


@given(architectures())
def test_formulas_evaluate_to_counts(model: Architecture) -> None:
    letters = legend(model)
    for weight in weight_table(model):
        assert eval(weight.formula(letters), {}, letters) == weight.count


@given(architectures())
def test_a_tied_head_saves_vocabulary_times_width(model: Architecture) -> None:
    untied = param_counts(replace(model, tied_embeddings=False))
    tied = param_counts(replace(model, tied_embeddings=True, stores_tied_head=False))
    assert untied.trainable - tied.trainable == model.vocab_size * model.d_model
    twice = param_counts(replace(model, tied_embeddings=True, stores_tied_head=True))
    assert twice.stored == untied.stored
    assert twice.trainable == tied.trainable


@given(architectures())
def test_more_layers_are_more_parameters(model: Architecture) -> None:
    deeper = replace(model, layers=(*model.layers, model.layers[-1]))
    few, many = param_counts(model), param_counts(deeper)
    assert few.trainable < many.trainable
    assert few.active < many.active
    assert few.stored < many.stored


@given(architectures())
def test_totals_are_ordered(model: Architecture) -> None:
    counts = param_counts(model)
    assert counts.active <= counts.trainable <= counts.stored
    if model.experts is None:
        assert counts.active == counts.trainable


@given(architectures())
def test_active_leaves_out_the_experts_not_visited(model: Architecture) -> None:
    counts = param_counts(model)
    idle = sum(
        layer.mlp.num_experts * layer.mlp.d_ff * 3 * model.d_model
        - layer.mlp.experts_per_token * layer.mlp.d_ff * 3 * model.d_model
        for layer in model.layers
        if isinstance(layer.mlp, Experts)
    )
    assert counts.trainable - counts.active == idle


@given(architectures())
def test_the_order_of_layers_does_not_matter(model: Architecture) -> None:
    turned = replace(model, layers=model.layers[::-1])
    assert param_counts(turned) == param_counts(model)


def layer(**keys: object) -> Layer:
    return Layer(mixer=None, mlp=None, norms=(), **keys)  # type: ignore[arg-type]


def model(**keys: object) -> Architecture:
    bare = Architecture(
        name="bare",
        family="none",
        d_model=8,
        vocab_size=10,
        layers=(layer(),),
        tied_embeddings=True,
        final_norm=None,
    )
    return replace(bare, **keys)  # type: ignore[arg-type]


def counts(architecture: Architecture) -> dict[str, int]:
    return {weight.name: weight.count for weight in weight_table(architecture)}


def test_a_narrow_embedding_is_projected_in_and_out() -> None:
    assert counts(model(embedding_dim=4)) == {
        "embedding": 40,
        "embedding_in": 32,
        "embedding_out": 32,
    }


def test_norms_have_the_vectors_that_they_say() -> None:
    assert counts(model(final_norm=LAYER_NORM)) == {
        "embedding": 80,
        "final_norm": 8,
        "final_norm.bias": 8,
    }
    assert counts(model(final_norm=Norm(scale=False))) == {"embedding": 80}


def test_a_buffer_is_stored_and_not_trained() -> None:
    buffer = ExtraWeight(name="scale", shape=(3,), dims=("one",), trainable=False)
    totals = param_counts(model(layers=(layer(extra=(buffer,)),) * 2))
    assert (totals.trainable, totals.stored) == (80, 86)


@pytest.mark.parametrize(
    ("over", "shape"), [("head", (4,)), ("each_head", (6, 4)), ("all", (6, 4))]
)
def test_norms_of_queries(over: str, shape: tuple[int, ...]) -> None:
    attention = Attention(num_heads=6, num_kv_heads=2, head_dim=4, qk_norm=Norm())
    attention = replace(attention, qk_norm_over=over)  # type: ignore[arg-type]
    table = weight_table(model(layers=(Layer(mixer=attention, mlp=None, norms=()),)))
    norm = next(weight for weight in table if weight.name == "layers.attention.query_norm")
    assert norm.shape == shape


def test_a_size_without_its_letter_stands_as_a_number() -> None:
    weight = Weight(name="x", component="mlp", shape=(8, 3), dims=("d_model", "d_ff"), copies=2)
    assert weight.formula({"L": 2, "D": 8, "F": 3}) == "L*D*F"
    assert weight.formula({"L": 4, "D": 8, "F": 5}) == "2*D*3"
    one = Weight(name="x", component="extra", shape=(1,), dims=("one",))
    assert one.formula({}) == "1"
