"""What is said of how far a prediction may be off."""

from muster.report.trust import error_words
from muster.validation.expected import expected_error


def test_an_error_of_what_was_fitted_says_so() -> None:
    """Two set-ups on v7x, both in the half that was fitted; v5p has some that were held back."""
    assert expected_error("v7x").held_back == 0
    assert "which it was fitted to" in error_words("v7x")[1]
    assert expected_error("v5p").held_back > 0
    assert "fitted to" not in error_words("v5p")[1]
