"""Azure and BurstGPT: CSV files without prefixes."""

import pytest

from pddbench.errors import TraceError
from pddbench.trace.azure import read_azure
from pddbench.trace.burstgpt import read_burstgpt
from pddbench.trace.stamps import parse_stamp

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def put(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01 00:00:01.0000001", 1_000_000_100),
        ("1970-01-01T00:00:01Z", 1_000_000_000),
        ("1970-01-01 00:00:00.123456789+00:00", 123_456_789),
        ("1970-01-01T02:00:00.5+02:00", 500_000_000),
        ("1969-12-31T22:30:00-0130", 0),
        ("2023-11-16 18:17:03.9799600", 1_700_158_623_979_960_000),
        ("1970-02-30 00:00:00", None),
        ("16/11/2023", None),
        ("", None),
    ],
)
def test_stamps_are_exact(text, ns):
    """Floats of seconds since 1970 lose 100 ns, and a zone read as none shifts a trace by hours."""
    stamp = parse_stamp(text)
    assert (stamp and stamp.ns) == ns


def test_azure_traps(data):
    """CRLF, seven digits, no final line end, no zone, equal stamps: three roots that share nothing."""
    trace = read_azure(data / "synthetic" / "azure_traps.csv")
    assert [(r.request_id, r.start_s, r.input_tokens, r.output_tokens) for r in trace.rows] == [
        ("L2", 0.0, 4808, 10),
        ("L3", 0.052, 3180, 8),
        ("L4", 0.052, 110, 27),
    ]
    assert all(r.session_id == r.request_id and r.prefix_of is None and not r.parents for r in trace.rows)
    assert trace.header.counts == {"stamps_without_zone": 3}
    assert any("no zone" in text for text in trace.header.assumptions)
    assert any("every hit is 0" in text for text in trace.header.assumptions)


def test_azure_unsorted_rows_are_sorted_and_said(tmp_path):
    """Order is a change of the workload, so it is told."""
    trace = read_azure(put(tmp_path, AZURE + "2024-05-10 00:00:01+00:00,5,1\n2024-05-10 00:00:00+00:00,6,0\n"))
    assert [(r.request_id, r.start_s) for r in trace.rows] == [("L3", 0.0), ("L2", 1.0)]
    assert trace.header.counts == {"zero_outputs": 1}
    assert any("not ascending" in text for text in trace.header.assumptions)


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("2023-11-16,5,1", "TIMESTAMP"),
        ("2023-11-16 18:17:03,5.5,1", "ContextTokens"),
        ("2023-11-16 18:17:03,5,", "GeneratedTokens"),
        ("2023-11-16 18:17:03,5,99999999999", "GeneratedTokens"),
        ("2023-11-16 18:17:03,5", None),
        ('2023-11-16 18:17:03,"5,1', None),
    ],
)
def test_azure_bad_cells(tmp_path, line, field):
    """A cell that is no number must not become 0."""
    with pytest.raises(TraceError) as caught:
        read_azure(put(tmp_path, AZURE + line + "\n"))
    assert (caught.value.line, caught.value.field) == (2, field)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("TIMESTAMP,ContextTokens\n", "GeneratedTokens.*missing"),
        (AZURE.strip() + ",TIMESTAMP\n", "names a column twice"),
        (AZURE, "a header but no request"),
    ],
)
def test_azure_bad_headers(tmp_path, header, problem):
    """The header decides what the numbers mean."""
    with pytest.raises(TraceError, match=problem):
        read_azure(put(tmp_path, header))


def test_burstgpt_traps(data):
    """A byte-order mark, an empty session, a failed request: kept, counted, and the gap from end to start."""
    trace = read_burstgpt(data / "synthetic" / "burstgpt_traps.csv")
    found = [(r.request_id, r.session_id, r.turn, r.start_s, r.gap_s, r.parents, r.output_tokens) for r in trace.rows]
    assert found == [
        ("L2", "session/a1", 0, 5.0, None, (), 18),
        ("L3", "L3", 0, 5.0, None, (), 0),
        ("L4", "session/a1", 1, 45.0, 37.5, ("L2",), 30),
    ]
    assert trace.header.counts == {"failed_requests": 1, "requests_without_session": 1}
    assert any("failed" in text for text in trace.header.assumptions)


def test_burstgpt_negative_gap_and_unknown_end(tmp_path):
    """A turn that starts before the last ended waits 0 s, and is counted; without an end the gap is unknown."""
    lines = "0,a,9,M,1,1,2,x\n5,a,,M,1,1,2,x\n7,a,1,M,0,1,3,x\n"
    trace = read_burstgpt(put(tmp_path, BURST + lines))
    assert [r.gap_s for r in trace.rows] == [None, 0.0, None]
    assert trace.header.counts == {"negative_gaps": 1, "zero_inputs": 1, "totals_that_do_not_add_up": 1}


def test_burstgpt_first_release_has_no_sessions(tmp_path):
    """The older files lack two columns: every request stands alone."""
    text = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
    )
    trace = read_burstgpt(put(tmp_path, text))
    assert trace.rows[0].session_id == "L2" and trace.header.counts == {"requests_without_session": 1}
