"""What a simulated run says: plain data from the emulator's reports, and a text for reading."""

import collections
import json
from typing import Any

_PS_PER_MS = 1e9
_PARTS = (
    "matmul",
    "other_compute",
    "exposed_tp",
    "exposed_pp",
    "exposed_dp",
    "bubble",
    "optimizer",
    "data",
    "launch",
    "host",
    "multi_node",
    "other",
)
_SHOWN_STEPS = 8
_SHOWN_ROWS = 10


class StepLog:
    """The reports of the last `keep` steps, equal ones in a row once, and what the earlier ones
    come to."""

    def __init__(self, keep: int):
        # (number of the step, what it shares with equal ones)
        self._kept: collections.deque[tuple[int, dict[str, Any]]] = collections.deque(maxlen=keep)
        self._text = ""
        self._steps = 0
        self.ranks: set[int] = set()  # that did something in a step
        self.estimated: set[str] = set()  # operations without a program
        self.earlier = {"steps": 0, "step_time_ps": 0, "shortest_ps": 0, "longest_ps": 0}

    def __len__(self) -> int:
        return self._steps

    def add(self, text: str) -> None:
        """text: a report of schema trellis.step_report/1, whose step number does not count."""
        content = self._kept[-1][1] if text == self._text else json.loads(text)
        if text != self._text:
            rows = content["breakdown"]
            self.ranks |= {row["rank"] for row in rows if row["total_ps"] > row["bubble_ps"]}
            self.estimated |= set(content["coverage"]["estimated"])
        if len(self._kept) == self._kept.maxlen:
            self._drop(self._kept[0][1]["step_time_ps"])
        self._kept.append((self._steps, content))
        self._text, self._steps = text, self._steps + 1

    def _drop(self, time_ps: int) -> None:
        before = self.earlier
        shortest = min(before["shortest_ps"], time_ps) if before["steps"] else time_ps
        self.earlier = {
            "steps": before["steps"] + 1,
            "step_time_ps": before["step_time_ps"] + time_ps,
            "shortest_ps": shortest,
            "longest_ps": max(before["longest_ps"], time_ps),
        }

    def reports(self) -> list[dict[str, Any]]:
        return [{**content, "step": number} for number, content in self._kept]


class RunReport:
    """steps: reports of schema trellis.step_report/1 in order, those of the last steps
    (simulate(keep_steps=…)); earlier: how many were before them, and their times together;
    memory: trellis.memory/1; portability: trellis.portability/1."""

    def __init__(self, *, session, steps: StepLog, memory, portability, tokens_per_step=None):
        self.session, self.memory = session, memory
        self.steps, self.earlier = steps.reports(), steps.earlier
        self._ranks, self._estimated = sorted(steps.ranks), sorted(steps.estimated)
        self.portability, self.tokens_per_step = portability, tokens_per_step

    def step_times_ms(self) -> list[float]:
        """Of the steps in `steps`."""
        return [step["step_time_ms"] for step in self.steps]

    def ranks(self) -> list[int]:
        """Ranks that did something in a step."""
        return self._ranks

    def breakdown_ms(self, rank: int | None = None) -> list[dict[str, float]]:
        """Per step of `steps`, in ms: where the time of `rank` went (None: the first rank that
        worked); the parts add up to the step."""
        ranks = self.ranks()
        rank = rank if rank is not None else (ranks[0] if ranks else 0)
        return [
            {part: step["breakdown"][rank][part + "_ps"] / _PS_PER_MS for part in _PARTS}
            for step in self.steps
        ]

    def tokens_per_second(self) -> float | None:
        """Of the last step: the first ones may hold work that is done once."""
        if self.tokens_per_step is None or not self.steps or self.steps[-1]["step_time_ms"] == 0:
            return None
        return self.tokens_per_step / (self.steps[-1]["step_time_ms"] / 1e3)

    def peak_memory_bytes(self) -> dict[int, int]:
        return {
            row["rank"]: row["peak_bytes"] for row in self.memory["ranks"] if row["peak_bytes"] > 0
        }

    def estimated(self) -> list[str]:
        """Operations whose time is an estimate, because the compiler has no program for them."""
        return self._estimated

    def as_dict(self) -> dict[str, Any]:
        return {
            "schema": "trellis.run/1",
            "session": self.session,
            "ranks": self.ranks(),
            "tokens_per_second": self.tokens_per_second(),
            "estimated": self.estimated(),
            "steps": self.steps,
            "earlier_steps": self.earlier,
            "memory": self.memory,
            "portability": self.portability,
        }

    def __str__(self) -> str:
        s = self.session
        lines = [
            f"{s['nodes']} × {s['instance']}, {len(self.ranks())} of {s['logical_cores']} "
            "logical cores used" + (", shape-only" if s["shape_only"] else "")
        ]
        lines += self._step_lines()
        if (rate := self.tokens_per_second()) is not None:
            lines.append(f"tokens/s (last step): {rate:,.0f}")
        lines += self._memory_lines()
        if self.estimated():
            lines.append("estimated, not compiled: " + ", ".join(self.estimated()))
        return "\n".join(lines + self._portability_lines())

    def _step_lines(self) -> list[str]:
        if not self.steps:
            return ["no step ended"]
        parts = self.breakdown_ms()
        shown = [p for p in _PARTS if any(row[p] > 0 for row in parts)]
        lines = ["step   time ms  " + "".join(f"{p:>15}" for p in shown)]
        first = max(0, len(self.steps) - _SHOWN_STEPS)
        if earlier := first + self.earlier["steps"]:
            lines.append(f"… {earlier} earlier steps")
        for step, row in list(zip(self.steps, parts))[first:]:
            lines.append(
                f"{step['step']:>4}  {step['step_time_ms']:>9.3f}  "
                + "".join(f"{row[p]:>15.3f}" for p in shown)
            )
        return lines

    def _memory_lines(self) -> list[str]:
        peaks = self.peak_memory_bytes()
        if not peaks:
            return []
        rank = max(peaks, key=peaks.get)
        capacity = self.session["memory_per_core_bytes"]
        return [
            f"memory peak: {peaks[rank] / 2**20:,.1f} MiB on rank {rank} of "
            f"{capacity / 2**30:,.1f} GiB per core"
        ]

    def _portability_lines(self) -> list[str]:
        rows = [row for row in self.portability["operators"] if not row["portable"]]
        if not rows:
            return []
        lines = [
            f"  {row['operator']} {row['dtype']}: {row['on_device']}" for row in rows[:_SHOWN_ROWS]
        ]
        if len(rows) > _SHOWN_ROWS:
            lines.append(f"  … {len(rows) - _SHOWN_ROWS} more")
        return ["differs on the hardware:", *lines]
