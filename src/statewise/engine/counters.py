"""What the engine counts."""

from dataclasses import dataclass


@dataclass
class Preempted:
    """What the scheduler counts. Refused: those that were recomputed since the host had no room for them."""

    preemptions: int = 0
    swaps_out: int = 0
    swaps_in: int = 0
    swaps_refused: int = 0
    swap_bytes: int = 0  # to the host and back
    continued_tokens: int = 0  # that did not run again, since a request went on from the caches of another
    kept_dropped: int = 0  # ended requests whose kept caches went to others


@dataclass(frozen=True, kw_only=True)
class Counters:
    """What has been done since the start. A state write counts once, all layers together."""

    steps: int
    prefill_tokens: int
    prefill_writes: int  # states written by prefill chunks
    decode_rows: int  # decode tokens run
    padded_rows: int  # rows of graphs that were not needed
    graph_steps: int  # steps that replayed a CUDA graph
    state_writes: int  # states written by decode rows: with an interval above 1, each is a flush
    replayed_rows: int  # ring rows read by decode rows
    kv_read_tokens: int  # tokens whose keys and values decode rows read
    preemptions: int
    swaps_out: int
    swaps_in: int
    swaps_refused: int  # preempted requests for which the host had no room, so that they were recomputed
    swap_bytes: int  # to the host and back
    continued_tokens: int  # that did not run again, since a request went on from the caches of another
    kept_dropped: int  # ended requests whose kept caches went to others
    state_bytes_read: int  # by decode rows: states, rings, windows, trackers
    state_bytes_written: int  # likewise
    kv_bytes_moved: int  # by decode rows

    @property
    def state_bytes_moved(self) -> int:
        """Bytes of states, rings, windows and trackers that decode rows read and write."""
        return self.state_bytes_read + self.state_bytes_written

    @property
    def pending_depth(self) -> float:
        """Ring rows that a decode row replays, the mean."""
        return self.replayed_rows / max(1, self.decode_rows)
