"""What the engine counts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Counters:
    """What has been done since the start. A state write counts once, all layers together."""

    steps: int
    prefill_tokens: int
    prefill_writes: int  # states written by prefill chunks
    decode_rows: int  # decode tokens run
    padded_rows: int  # rows of graphs that were not needed
    graph_steps: int  # steps that replayed a CUDA graph
    state_writes: int  # states written by decode rows
    replayed_rows: int  # ring rows read by decode rows
    kv_read_tokens: int  # tokens whose keys and values decode rows read
    preemptions: int
    state_bytes_moved: int  # by decode rows: states, rings, windows, trackers
    kv_bytes_moved: int  # by decode rows
