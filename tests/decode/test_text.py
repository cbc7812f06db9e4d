"""decode.text and decode.json: what bytes mean, and where they mean nothing."""

from __future__ import annotations

import json as standard
import math
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nogil_loader import decode

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


class TestText:
    @given(st.text())
    def test_any_text_comes_back(self, content: str) -> None:
        data = content.encode("utf-8")
        assert decode.text()(data) == decode.text()(memoryview(data)) == content
        assert decode.text("utf-16")(content.encode("utf-16")) == content

    def test_line_ends_and_marks_are_kept(self) -> None:
        assert decode.text()(b"\xef\xbb\xbfa\r\nb\n") == "\ufeffa\r\nb\n"
        assert decode.text("utf-8-sig")(b"\xef\xbb\xbfa") == "a"

    def test_a_path_is_read_and_named_in_errors(self, tmp_path: Path) -> None:
        path = tmp_path / "caption.txt"
        path.write_bytes("naïve".encode("latin-1"))
        with pytest.raises(decode.DecodeError, match=r"caption\.txt: not utf-8.*position 2"):
            decode.text()(path)
        assert decode.text("latin-1")(str(path)) == "naïve"
        assert decode.text(errors="replace")(path) == "na\ufffdve"

    def test_unknown_encodings_are_refused_when_the_decoder_is_made(self) -> None:
        with pytest.raises(ValueError, match="klingon"):
            decode.text("klingon")
        with pytest.raises(ValueError, match="hope"):
            decode.text(errors="hope")

    def test_prints_as_the_code_that_makes_it(self) -> None:
        op = decode.text("latin-1")
        assert repr(op) == "decode.text(encoding='latin-1')"
        assert eval(repr(op)) == op == pickle.loads(pickle.dumps(op))


class TestJson:
    @given(VALUES)
    def test_any_value_comes_back(self, value: object) -> None:
        data = standard.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
        assert decode.json()(data) == value
        assert decode.json(strict=True).bind()(bytearray(data)) == value

    def test_a_byte_order_mark_is_passed_over(self) -> None:
        assert decode.json()(b"\xef\xbb\xbf[1]") == [1]

    def test_nan_is_read_unless_strict(self) -> None:
        got = decode.json()(b"NaN")
        assert isinstance(got, float)
        assert math.isnan(got)
        with pytest.raises(decode.DecodeError, match="NaN is not a JSON number"):
            decode.json(strict=True)(b"[NaN]")

    @pytest.mark.parametrize(
        "data", [b"", b"{", b"[1,]", b"\xff", b"[" * 200_000, b"1" * 5000, b"{'a': 1}"]
    )
    def test_what_is_no_json_is_refused(self, data: bytes) -> None:
        with pytest.raises(decode.DecodeError, match="not JSON"):
            decode.json()(data)

    def test_a_path_is_read_and_named_with_line_and_column(self, tmp_path: Path) -> None:
        path = tmp_path / "label.json"
        path.write_bytes(b'{"a": 1,\n "b": }')
        with pytest.raises(decode.DecodeError, match=r"label\.json: not JSON: .*line 2 column 7"):
            decode.json()(path)
        path.write_bytes(b'{"a": 1}')
        assert decode.json()(path) == {"a": 1}

    def test_prints_as_the_code_that_makes_it(self) -> None:
        assert repr(decode.json()) == "decode.json()"
        op = decode.json(strict=True)
        assert eval(repr(op)) == op == pickle.loads(pickle.dumps(op))
