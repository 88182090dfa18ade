"""What a file may be made of, and files that want to do harm."""

import gzip
import io
import json
import time
import zipfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.trajectories.formats.files import file_values
from flywheel.trajectories.formats.files.file_formats import Parsed, parse_file
from flywheel.trajectories.formats.files.file_values import Bounds, TooMuch
from flywheel.trajectories.formats.files.table_rows import guess, read_mapping
from flywheel.trajectories.formats.values.hostile_json import FormatError

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def chat(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "ok"}]}


def load(content: bytes, **more: Any) -> list[Parsed]:
    return list(parse_file(io.BytesIO(content), **more))


def asked(found: list[Parsed]) -> list[str]:
    return [item.trace.conversation()[0].content for item in found if item.trace]


ROWS = [chat("one"), chat("two {[\"'"), chat("three\n}]")]


@pytest.mark.parametrize(
    "content",
    [
        "\n".join(json.dumps(row) for row in ROWS),
        "\r\n\r\n".join(json.dumps(row) for row in ROWS) + "\n",
        "\ufeff" + "\n".join(json.dumps(row) for row in ROWS),
        json.dumps(ROWS),
        json.dumps(ROWS, indent=2),
        "\n".join(json.dumps(row, indent=4) for row in ROWS),
        "[\n" + ",\n".join(json.dumps(row) for row in ROWS) + "\n]\n",
    ],
)
@pytest.mark.parametrize("is_compressed", [False, True])
def test_json_is_read_however_it_is_laid_out(content: str, is_compressed: bool) -> None:
    body = gzip.compress(content.encode()) if is_compressed else content.encode()
    found = load(body)
    assert [item.error for item in found if item.error] == []
    assert asked(found) == ["one", "two {[\"'", "three\n}]"]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.recursive(st.text() | st.floats(allow_nan=False), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
    ),
    st.integers(1, 9),
)
def test_a_list_is_cut_into_its_values_wherever_the_pieces_end(values: list[Any], size: int) -> None:
    rows = [{"value": value} for value in values]

    class Slow(io.BytesIO):
        def read(self, wanted: int | None = -1) -> bytes:
            return super().read(size)

    text = json.dumps(rows, indent=1).encode()
    assert [item.value for item in file_values._values(Slow(text))] == rows


@pytest.mark.parametrize(
    ("content", "kept", "told"),
    [
        (b"[" + json.dumps(chat("one")).encode() + b",", 1, "the file ends before the list does"),
        (b"[" + json.dumps(chat("one")).encode() + b', {"messages": [', 1, "the file ends in the middle of it"),
        (b"[" + json.dumps(chat("one")).encode() + b", {broken}]", 1, "not valid JSON"),
        (b'[{"a": "', 0, "the file ends in the middle of it"),
        (b"[]]", 0, ""),
    ],
)
def test_what_is_cut_off_is_told_and_the_rest_is_kept(content: bytes, kept: int, told: str) -> None:
    found = load(content)
    assert len(asked(found)) == kept
    assert told in " ".join(item.error for item in found)


def test_a_gzip_stream_that_is_cut_off_is_refused() -> None:
    with pytest.raises(FormatError, match="gzip"):
        load(gzip.compress(json.dumps(ROWS).encode())[:-20])


def test_one_value_may_not_be_larger_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_values, "VALUE_MAX", 1000)
    monkeypatch.setattr(file_values, "CHUNK", 100)
    long = json.dumps(chat("x" * 2000))
    found = load(f"{json.dumps(chat('one'))}\n{long}\n{json.dumps(chat('two'))}\n".encode())
    assert asked(found) == ["one", "two"]
    assert [item.error for item in found if item.error] == ["longer than 0 MiB"]
    assert "one JSON value of more than" in load(json.dumps([chat("x" * 5000)]).encode())[0].error


def test_a_gzip_bomb_stops_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_values, "UNPACKED_MAX", 10_000_000)
    with pytest.raises(FormatError, match="unpacks to more than"):
        load(gzip.compress(b"\n" * 50_000_000))


@pytest.mark.parametrize("content", [b"\n".join(json.dumps(row).encode() for row in ROWS), json.dumps(ROWS).encode()])
def test_no_more_values_are_read_than_the_bounds_say(content: bytes) -> None:
    found = parse_file(io.BytesIO(content), bounds=Bounds(values=2))
    assert asked([next(found), next(found)]) == ["one", "two {[\"'"]
    with pytest.raises(TooMuch, match="more than that; at most 2 lines, rows or samples"):
        next(found)


@pytest.mark.parametrize("content", [json.dumps(ROWS).encode(), b"\n" * 100, b"question\tanswer\n" + b"\n" * 100])
def test_reading_ends_with_its_time_even_where_nothing_stands(content: bytes) -> None:
    with pytest.raises(TooMuch, match=r"longer than 0\.5 s"):
        list(parse_file(io.BytesIO(content), bounds=Bounds(seconds=0.5, begun=time.monotonic() - 1)))


# Archives


def archive(**members: bytes) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return target.getvalue()


SAMPLE = json.dumps({"id": 1, "epoch": 1, "input": "Hi", "target": "x", "messages": chat("Hi")["messages"]}).encode()
HEADER = json.dumps({"eval": {"task": "t", "model": "m", "run_id": "r"}}).encode()


def test_an_archive_without_zstandard_is_read_by_the_standard_library() -> None:
    (found,) = load(archive(**{"header.json": HEADER, "samples/1_epoch_1.json": SAMPLE}))
    assert found.at == "samples/1_epoch_1.json"
    assert found.trace is not None
    assert (found.trace.agent, found.trace.version) == ("t", "m")


def test_names_in_an_archive_are_only_names(tmp_path: Any) -> None:
    names = ["samples/../../../etc/passwd.json", "/samples/x.json", "samples/" + "x" * 500 + ".json"]
    found = load(archive(**dict.fromkeys(names, SAMPLE)))
    assert len(asked(found)) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_zip_bomb_costs_one_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_values, "VALUE_MAX", 1_000_000)
    found = load(archive(**{"samples/a.json": b" " * 100_000_000, "samples/b.json": SAMPLE}))
    assert asked(found) == ["Hi"]
    assert "unpacks to more than" in found[0].error


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (archive(**{"a.txt": b"x"}), "no Inspect log"),
        (archive(**{"[Content_Types].xml": b"x"}), "save the sheet as CSV"),
        (archive(**{"samples/a.json": SAMPLE})[:-30], "zip: "),
        (b"PK\x03\x04" + b"\x00" * 50, "zip: "),
        (b"PAR1" + b"\x00" * 50, "Parquet: "),
    ],
)
def test_a_file_that_cannot_be_read_says_why(content: bytes, told: str) -> None:
    with pytest.raises(FormatError, match="".join(told)):
        load(content)


def test_without_pyarrow_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("flywheel.trajectories.formats.files.file_values.importlib.import_module", absent)
    with pytest.raises(FormatError, match=r"install flywheel\[files\]"):
        load(b"PAR1" + b"\x00" * 50)


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=200), st.sampled_from([b"", b"PK\x03\x04", b"PAR1", b"\x1f\x8b\x08", b"[", b"{", b"a,b\n"]))
def test_any_bytes_are_read_or_refused(content: bytes, magic: bytes) -> None:
    try:
        found = load(magic + content)
    except FormatError:
        return
    for item in found:
        assert (item.trace is None) == bool(item.error)


# Tables


CSV = b'when,question,answer,ok,plan\n2026-01-31T12:00:00Z,"Meet\nBako",Done,yes,pro\n2026-02-01T12:00:00Z,Hi,,no,\n'


def test_a_table_with_telling_names_needs_no_mapping() -> None:
    one, two = load(CSV)
    assert one.trace is not None
    assert two.trace is not None
    assert [(message.role, message.content) for message in one.trace.conversation()] == [
        ("user", "Meet\nBako"),
        ("assistant", "Done"),
    ]
    assert one.format == "table"
    assert one.trace.metadata == {"ok": "yes", "plan": "pro"}
    assert len(two.trace.steps) == 1


def test_a_mapping_says_what_columns_mean() -> None:
    mapping = {"input": "question", "output": "answer", "time": "when", "outcome": "ok", "id": "plan", "metadata": []}
    one, two = (item.trace for item in load(CSV, mapping=mapping))
    assert one is not None
    assert two is not None
    assert (one.outcome, two.outcome, one.metadata) == ("success", "failed", {})
    assert one.steps[0].started_at is not None
    assert one.trace_id != two.trace_id


@pytest.mark.parametrize(
    ("mapping", "told"),
    [
        ({"input": "nothing"}, 'mapping.input: "nothing" is not one of the columns'),
        ({"inptu": "question"}, 'mapping: "inptu" is not one of messages'),
        ({"id": "plan"}, "a column for messages, input or output is needed"),
        ({"input": "question", "metadata": ["x"]}, 'mapping.metadata: "x" is not one of the columns'),
        ("{", "not valid JSON"),
        ([], "mapping: an object is wanted"),
    ],
)
def test_a_mapping_that_cannot_be_is_refused(mapping: Any, told: str) -> None:
    with pytest.raises(FormatError) as caught:
        load(CSV, mapping=mapping)
    assert told in str(caught.value)


def test_a_table_that_nobody_understands_names_its_columns() -> None:
    with pytest.raises(FormatError, match="none of the columns alpha, beta"):
        load(b"alpha,beta\n1,2\n")


def test_rows_of_another_width_and_cells_of_a_wrong_kind_are_left_out() -> None:
    found = load(b"time,input\n1790000000,Hi\nx,Hi\n1,2,3\n,\n")
    assert [item.error for item in found] == [
        "",
        'time: "x" is not a time such as 2026-01-31T12:00:00Z',
        "3 cells, 2 columns",
        "input: empty, at least one message is wanted",
    ]


def test_a_table_has_so_many_columns_at_most() -> None:
    names = ["question", *(f"c{number}" for number in range(file_values.COLUMNS_MAX))]
    told = "2,001 columns; at most 2,000"
    with pytest.raises(FormatError, match=f"CSV: {told}"):
        load(",".join(names).encode() + b"\n")
    target = io.BytesIO()
    parquet.write_table(pyarrow.table({name: ["x"] for name in names}), target)
    with pytest.raises(FormatError, match=f"Parquet: {told}"):
        load(target.getvalue())


def test_the_line_that_names_columns_is_not_read_to_its_end() -> None:
    source = io.BytesIO(b"question," + b"x" * (file_values.NAMES_MAX * 4) + b"\n1,2\n")
    with pytest.raises(FormatError, match="CSV: the row is longer than 1 MiB"):
        parse_file(source)
    assert source.tell() < file_values.NAMES_MAX * 2


def test_a_csv_row_is_no_longer_than_the_limit_over_all_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_values, "VALUE_MAX", 1024**2)
    found = load(b'question,answer\nHi,ok\n"' + b"x\n" * 1024**2 + b'",ok\nHo,ok\n')
    assert asked(found) == ["Hi"]
    assert found[-1].error == "CSV: the row is longer than 1 MiB; nothing after it was read"


@pytest.mark.parametrize(
    ("line", "mark"), [("a,b;c,d", ","), ("a;b", ";"), ("a\tb,c\td", "\t"), ('"a,b,c";d', ";"), ('"a;b', ",")]
)
def test_what_parts_the_names_of_columns(line: str, mark: str) -> None:
    assert file_values._delimiter(line) == mark


def test_a_parquet_file_says_how_many_rows_it_has_before_any_is_read() -> None:
    with pytest.raises(TooMuch, match="the file holds 300,000 rows; at most 50,000"):
        parse_file(io.BytesIO(bomb(300_000)), bounds=Bounds(values=50_000))


def test_what_parquet_unpacks_to_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_values, "UNPACKED_MAX", 1_000_000)
    content = bomb(1_000, "x" * 10_000)
    assert len(content) < 5_000
    read = file_values.read(io.BytesIO(content)).items
    with pytest.raises(TooMuch, match="Parquet: unpacks to more than"):
        list(read)


def test_a_parquet_row_too_large_does_not_cost_its_siblings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_values, "VALUE_MAX", 1024**2)
    target = io.BytesIO()
    parquet.write_table(pyarrow.table({"question": ["Hi", "x" * 2 * 1024**2, "Ho"]}), target)
    found = load(target.getvalue())
    assert (asked(found), found[1].error) == (["Hi", "Ho"], "longer than 1 MiB")


def bomb(rows: int, text: str = "Hi") -> bytes:
    """A few kilobytes of Parquet that are many equal rows."""
    target = io.BytesIO()
    parquet.write_table(pyarrow.table({"question": pyarrow.repeat(text, rows)}), target)
    return target.getvalue()


def test_a_name_that_fits_and_values_that_do_not_is_no_guess() -> None:
    found = guess(["label", "time", "prompt"], [{"label": "spam", "time": "soon", "prompt": "Hi"}])
    assert found.columns == {"input": "prompt"}
    assert read_mapping(found.to_json(), ["label", "time", "prompt"]) == found


def test_parquet_keeps_numbers_to_the_last_bit() -> None:
    table = pyarrow.table(
        {
            "messages": [json.dumps(chat("Hi")["messages"])],
            "completion_ids": [[1, 2**53 + 1]],
            "completion_logprobs": [[-1e-05, -0.0]],
            "prompt_ids": [[7]],
        }
    )
    target = io.BytesIO()
    parquet.write_table(table, target)
    (found,) = load(target.getvalue(), format="table")
    assert found.trace is not None
    given = found.trace.steps[1].sampling
    assert given["token_ids"] == [1, 2**53 + 1]
    assert [str(value) for value in given["logprobs"]] == ["-1e-05", "-0.0"]


def test_parquet_of_chat_messages_is_read_as_such() -> None:
    rows = [
        {"messages": chat("Hi")["messages"]},
        {"messages": [*chat("Ho")["messages"], {"role": "tool", "content": "x", "tool_call_id": "c"}]},
    ]
    target = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), target)
    found = load(target.getvalue())
    assert {item.format for item in found} == {"openai"}
    assert asked(found) == ["Hi", "Ho"]
