from __future__ import annotations

import decimal

import numpy as np
import pytest

from orca.core.columns import check_columns, column_array, concatenate, output_names, single, squeeze
from orca.core.source import Columns
from orca.errors import DataError
from raised import raises

pd = pytest.importorskip("pandas")


def test_columns_that_exist_pass() -> None:
    check_columns(Columns(("a", "b"), ("y",)), ["y", "b", "a", "more"])


def test_missing_features_are_asked_for() -> None:
    with raises("missing-feature-cols", match="'a'"):
        check_columns(Columns(labels=("y",)), ["a", "y"], "fit")


def test_a_wrong_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        DataError, match=r"no column 'featres'; the data has \['features', 'label'\]. Did you mean 'features'\?"
    ):
        check_columns(Columns(("featres",)), ["features", "label"])


def test_a_wrong_label_is_found_too_and_nothing_is_guessed_without_a_near_name() -> None:
    with raises("missing-column", match="'zzz'"):
        check_columns(Columns(("a",), ("zzz",)), ["a", "b"])


def test_columns_named_by_numbers_are_listed() -> None:
    with raises("missing-column", match="'f'"):
        check_columns(Columns(("f",)), [0, 1])  # type: ignore[list-item]


def test_one_column_is_one_argument() -> None:
    assert single(("only",)) == "only"
    assert single(("a", "b")) == ("a", "b")


def test_outputs_are_named_prediction_unless_asked() -> None:
    assert output_names(Columns(), 1) == ("prediction",)
    assert output_names(Columns(), 3) == ("prediction_0", "prediction_1", "prediction_2")
    assert output_names(Columns(outputs=("p", "q")), 2) == ("p", "q")


def test_another_number_of_output_names_is_refused() -> None:
    with raises("output-cols-count", match="'p'"):
        output_names(Columns(outputs=("p",)), 2)


def test_one_number_a_row_is_no_list() -> None:
    assert squeeze(np.zeros((4, 1))).shape == (4,)
    assert squeeze(np.zeros((4, 2))).shape == (4, 2)
    assert squeeze(np.zeros((1, 1))).shape == (1,)
    assert squeeze(np.zeros((4, 1, 1))).shape == (4, 1, 1)


def test_plain_columns_stay_as_they_are() -> None:
    assert column_array(pd.Series([1, 2]), "n").tolist() == [1, 2]
    assert column_array(pd.Series([0.5, np.nan]), "n").dtype == np.float64
    assert column_array(pd.Series(["a", "b"], dtype=object), "s").tolist() == ["a", "b"]


def test_cells_that_are_lists_or_arrays_are_stacked() -> None:
    assert column_array(pd.Series([[1, 2], [3, 4]]), "v").tolist() == [[1, 2], [3, 4]]
    images = column_array(pd.Series([np.zeros((2, 3)), np.ones((2, 3))]), "v")
    assert images.shape == (2, 2, 3)


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, pd.NaT], ids=repr)
@pytest.mark.parametrize("cell", ["text", [1.0, 2.0]], ids=repr)
def test_missing_cells_are_named(cell: object, missing: object) -> None:
    column = pd.Series([cell, missing], dtype=object)
    with raises("missing-values", match="'v'"):
        column_array(column, "v")


def test_masked_cells_are_missing_values() -> None:
    cells = [np.ma.masked_array([1.0, 2.0], [False, True]), np.ma.masked_array([3.0, 4.0], False)]
    with pytest.raises(DataError, match=r"^column 'v' has missing values"):
        column_array(pd.Series(cells), "v")


def test_texts_of_numpys_own_type_are_read() -> None:
    texts = np.array(["a", "b"], dtype=np.dtypes.StringDType())
    assert column_array(texts, "v").tolist() == ["a", "b"]


def test_ragged_cells_are_named() -> None:
    with raises("ragged-rows", match="'v'"):
        column_array(pd.Series([[1, 2], [3]]), "v")


def test_an_empty_column_has_no_rows() -> None:
    assert len(column_array(pd.Series([], dtype=object), "v")) == 0


def test_concatenate_joins_trees_along_rows() -> None:
    whole = concatenate([{"a": np.zeros((2, 3)), "b": (np.ones(2),)}, {"a": np.zeros((1, 3)), "b": (np.ones(1),)}])
    assert whole["a"].shape == (3, 3) and whole["b"][0].tolist() == [1, 1, 1]


def test_objects_that_are_no_numbers_are_named() -> None:
    with pytest.raises(DataError, match="column 'd' holds Decimal objects. Turn them into numbers first"):
        column_array(pd.Series([decimal.Decimal(1), decimal.Decimal(2)], dtype=object), "d")
    assert column_array(pd.Series([1, 2**40], dtype=object), "n").tolist() == [1, 2**40]
    assert column_array(pd.Series([b"a", b"b"], dtype=object), "b").tolist() == [b"a", b"b"]


def test_answers_of_different_structure_are_not_joined() -> None:
    with raises("predictions-differ-in-shape"):
        concatenate([{"a": np.zeros(2)}, (np.zeros(2),)])
