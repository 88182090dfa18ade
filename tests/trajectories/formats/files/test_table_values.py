"""Tables of CSV and Parquet, and those that want to do harm."""

import io
import json
from typing import Any

import pytest

from flywheel.trajectories.formats.files import file_limits, file_values, table_values
from flywheel.trajectories.formats.files.file_formats import parse_file
from flywheel.trajectories.formats.files.file_limits import Bounds, TooMuch
from flywheel.trajectories.formats.files.table_rows import guess, read_mapping
from flywheel.trajectories.formats.values.hostile_json import FormatError
from tests.trajectories.formats.exports import chat, first_messages, of_bytes

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

CSV = b'when,question,answer,ok,plan\n2026-01-31T12:00:00Z,"Meet\nBako",Done,yes,pro\n2026-02-01T12:00:00Z,Hi,,no,\n'


def test_a_table_with_telling_names_needs_no_mapping() -> None:
    one, two = of_bytes(CSV)
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
    one, two = (item.trace for item in of_bytes(CSV, mapping=mapping))
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
        ([], "mapping: expected an object"),
    ],
)
def test_a_mapping_that_cannot_be_is_refused(mapping: Any, told: str) -> None:
    with pytest.raises(FormatError) as caught:
        of_bytes(CSV, mapping=mapping)
    assert told in str(caught.value)


def test_a_table_that_nobody_understands_names_its_columns() -> None:
    with pytest.raises(FormatError, match="none of the columns alpha, beta"):
        of_bytes(b"alpha,beta\n1,2\n")


def test_rows_of_another_width_and_cells_of_a_wrong_kind_are_left_out() -> None:
    found = of_bytes(b"time,input\n1790000000,Hi\nx,Hi\n1,2,3\n,\n")
    assert [item.error for item in found] == [
        "",
        'time: "x" is not a time such as 2026-01-31T12:00:00Z',
        "3 cells, 2 columns",
        "input: empty, expected at least one message",
    ]


def test_a_table_has_so_many_columns_at_most() -> None:
    names = ["question", *(f"c{number}" for number in range(table_values.COLUMNS_MAX))]
    told = "2,001 columns; at most 2,000"
    with pytest.raises(FormatError, match=f"CSV: {told}"):
        of_bytes(",".join(names).encode() + b"\n")
    target = io.BytesIO()
    parquet.write_table(pyarrow.table({name: ["x"] for name in names}), target)
    with pytest.raises(FormatError, match=f"Parquet: {told}"):
        of_bytes(target.getvalue())


def test_the_line_that_names_columns_is_not_read_to_its_end() -> None:
    source = io.BytesIO(b"question," + b"x" * (table_values.NAMES_MAX * 4) + b"\n1,2\n")
    with pytest.raises(FormatError, match="CSV: the row is longer than 1 MiB"):
        parse_file(source)
    assert source.tell() < table_values.NAMES_MAX * 2


def test_a_csv_row_is_no_longer_than_the_limit_over_all_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_limits, "VALUE_MAX", 1024**2)
    found = of_bytes(b'question,answer\nHi,ok\n"' + b"x\n" * 1024**2 + b'",ok\nHo,ok\n')
    assert first_messages(found) == ["Hi"]
    assert found[-1].error == "CSV: the row is longer than 1 MiB; nothing after it was read"


@pytest.mark.parametrize(
    ("line", "mark"), [("a,b;c,d", ","), ("a;b", ";"), ("a\tb,c\td", "\t"), ('"a,b,c";d', ";"), ('"a;b', ",")]
)
def test_what_parts_the_names_of_columns(line: str, mark: str) -> None:
    assert table_values._delimiter(line) == mark


def test_a_parquet_file_says_how_many_rows_it_has_before_any_is_read() -> None:
    with pytest.raises(TooMuch, match="the file holds 300,000 rows; at most 50,000"):
        parse_file(io.BytesIO(bomb(300_000)), bounds=Bounds(values=50_000))


def test_what_parquet_unpacks_to_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_limits, "UNPACKED_MAX", 1_000_000)
    content = bomb(1_000, "x" * 10_000)
    assert len(content) < 5_000
    read = file_values.read(io.BytesIO(content)).items
    with pytest.raises(TooMuch, match="Parquet: unpacks to more than"):
        list(read)


def test_a_parquet_row_too_large_does_not_cost_its_siblings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_limits, "VALUE_MAX", 1024**2)
    target = io.BytesIO()
    parquet.write_table(pyarrow.table({"question": ["Hi", "x" * 2 * 1024**2, "Ho"]}), target)
    found = of_bytes(target.getvalue())
    assert (first_messages(found), found[1].error) == (["Hi", "Ho"], "longer than 1 MiB")


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
    (found,) = of_bytes(target.getvalue(), format="table")
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
    found = of_bytes(target.getvalue())
    assert {item.format for item in found} == {"openai"}
    assert first_messages(found) == ["Hi", "Ho"]


def test_a_parquet_file_that_cannot_be_read_says_why() -> None:
    with pytest.raises(FormatError, match="Parquet: "):
        of_bytes(b"PAR1" + b"\x00" * 50)


def test_without_pyarrow_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("flywheel.trajectories.formats.files.file_limits.importlib.import_module", absent)
    with pytest.raises(FormatError, match=r"install flywheel\[files\]"):
        of_bytes(b"PAR1" + b"\x00" * 50)
