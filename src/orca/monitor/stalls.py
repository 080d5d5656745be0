"""Stalls: which rank holds up the others. Owns which ranks are asked for a stack, and the message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from orca.monitor.failures import Failure
from orca.monitor.heartbeat import WAIT, Beat

STACKS = 4  # suspects asked for their stack


@dataclass
class Suspicion:
    """Ranks that may be stuck, until their stacks are here: the suspects, or else a rank that never came.

    Args:
        beats: The last beat of each rank that runs.
        absent: The ranks that never reported.
    """

    beats: list[Beat]
    absent: list[int]
    stacks: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        busy = [beat for beat in self.beats if beat.phase != WAIT]
        candidates = [] if self.absent and not busy else busy or self.beats
        least = min((_place(beat) for beat in candidates), default=None)
        self.suspects = [beat for beat in candidates if _place(beat) == least]

    @property
    def asked(self) -> list[int]:
        """Return the ranks to ask for their stack."""
        return [beat.rank for beat in self.suspects[:STACKS]]

    @property
    def culprit(self) -> int:
        """Return the rank to name."""
        return self.suspects[0].rank if self.suspects else self.absent[0]

    def failure(self, host: str, seconds: float, limit: float, address: str) -> Failure:
        """Return the failure of the culprit on a host: no progress for so many seconds, where there is a limit."""
        setting = f"if such a pause is normal here, raise the setting stall_timeout (now {limit:g} s)."
        if not self.suspects:
            reason = (
                f"it never reported to the driver in {seconds:.0f} s, while {_doings(self.beats)}. Check that its "
                f"worker was started and reaches {address}; {setting}"
            )
            return Failure(self.culprit, host, reason, kind="stalled")
        beat, *others = self.suspects
        company = f", like {_names([other.rank for other in others])}" if others else ""
        doings = _doings(beat for beat in self.beats if beat not in self.suspects)
        reason = (
            f"no progress for {seconds:.0f} s in epoch {beat.epoch}, step {beat.step} of {beat.steps}, "
            f"phase {beat.doing}{company}{', while ' + doings if doings else ''}; {setting}"
        )
        if beat.rank not in self.stacks:
            reason += " It did not answer with its stack: native code holds its interpreter, or it is stopped."
        text = self.stacks.get(beat.rank, "") + "".join(
            f"\nrank {rank} at the same time:\n{stack}"
            for rank, stack in sorted(self.stacks.items())
            if rank != beat.rank
        )
        return Failure(beat.rank, host, reason, text, kind="stalled")


def _place(beat: Beat) -> tuple[int, int, int]:
    return beat.epoch, beat.step, beat.phase


def _doings(beats: Iterable[Beat]) -> str:
    """Return the phases of ranks in words: "ranks 1, 2 were in backward, rank 3 was in wait"."""
    ranks_of: dict[str, list[int]] = {}
    for beat in beats:
        ranks_of.setdefault(beat.doing, []).append(beat.rank)
    return ", ".join(
        f"{_names(ranks)} {'was' if len(ranks) == 1 else 'were'} in {doing}" for doing, ranks in ranks_of.items()
    )


def _names(ranks: list[int]) -> str:
    """Return ranks in words, the first eight by number."""
    more = f", ... ({len(ranks)} in all)" if len(ranks) > 8 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}{more}"
