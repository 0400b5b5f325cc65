"""Checkpointed state updates for Mamba-2 and hybrid models: the state is read at every token, written once in W.

from statewise import LLM, SamplingParams

llm = LLM("path/to/model", checkpoint_interval=16)
for output in llm.generate(["2 + 2 ="], SamplingParams(temperature=0)):
    print(output.text)
"""

from statewise import errors
from statewise.config import EngineConfig
from statewise.engine.conversation import Conversation
from statewise.engine.llm import LLM, RequestOutput, StreamPiece
from statewise.engine.request import SamplingParams

__version__ = "0.1.0.dev0"

__all__ = ["LLM", "Conversation", "EngineConfig", "RequestOutput", "SamplingParams", "StreamPiece", "errors"]
