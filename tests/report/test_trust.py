"""What is said of how far a prediction may be off."""

from muster.models.registry import find_model
from muster.report.trust import error_words
from muster.validation.expected import expected_error


def test_an_error_of_what_was_fitted_says_so() -> None:
    """Two set-ups on v7x, both in the half that was fitted; v5p has some that were held back."""
    assert expected_error("v7x").held_back == 0
    assert "which it was fitted to" in error_words("v7x")[1]
    assert expected_error("v5p").held_back > 0
    assert "fitted to" not in error_words("v5p")[1]


def test_of_a_mixture_of_experts_the_error_is_not_known() -> None:
    mean, basis = error_words("v5p", find_model("llama-3-8b"))
    assert (mean, basis) == error_words("v5p")
    unknown, why = error_words("v5p", find_model("mixtral-8x7b"))
    assert unknown == "unknown"
    assert mean in why
    assert "dense models" in why
