import numpy as np
import pytest

import decodestep as ds
from decodestep._base.checks import Words, refuse


@pytest.mark.parametrize(
    ("got", "shown"),
    [
        (3, "3"),
        ("3", "'3'"),
        ("\ud800", r"'\ud800'"),
        (np.int64(3), repr(np.int64(3))),
        (np.zeros((2, 3), np.int8), "int8 2x3"),
        (np.array(3), "int64 scalar"),
        (np.float16, "<class 'numpy.float16'>"),
        ("x" * 100, "'" + "x" * 56 + "..."),
        (Words("two of them"), "two of them"),
        (Words("x" * 600), "x" * 497 + "..."),
    ],
)
def test_an_error_quotes_values_and_writes_words_as_they_are(got, shown):
    with pytest.raises(ValueError, match="must be") as caught:
        refuse("op", "arg", "right", got)
    assert str(caught.value) == f"op: arg must be right; got {shown}"


@pytest.mark.parametrize(
    "backend", [None, np.array([]), np.array(["triton"]), np.array(["cpu"] * 2), np.zeros(3, [("a", "i4")])]
)
def test_a_backend_that_is_no_name_is_refused(backend):
    with pytest.raises(ValueError, match=r"^top_k_top_p_sample: backend must be one of 'auto'"):
        ds.top_k_top_p_sample(np.zeros((1, 4), np.float16), 1, 0.5, backend=backend)
    with pytest.raises(ValueError, match=r"^uniform: backend must be one of 'auto'"):
        ds.random.uniform(0, 0, 0, backend=backend)
