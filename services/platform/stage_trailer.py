"""StageReports in the trailing metadata of calls whose messages have no room for them (VllmEngine/Generate)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenpath.v1.common_pb2 import StageReport, StageReports

STAGES_KEY = "tokenpath-stages-bin"


def stages_trailer(reports: Iterable[StageReport]) -> tuple[tuple[str, bytes], ...]:
    """The trailing metadata entry that carries `reports`."""
    return ((STAGES_KEY, StageReports(reports=reports).SerializeToString()),)


def stages_of(trailing_metadata: Iterable[tuple[str, str | bytes]] | None) -> Sequence[StageReport]:
    """The reports in a call's trailing metadata; none when it has no such entry."""
    for key, value in trailing_metadata or ():
        if key == STAGES_KEY and isinstance(value, bytes):
            return StageReports.FromString(value).reports
    return ()
