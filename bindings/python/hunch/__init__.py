"""hunch: exact self-speculative decoding of long-context language models.

    from hunch import LLM, SamplingParams

    with LLM(model="models/wren-34m.gguf") as llm:
        for output in llm.generate(["The captain looked at the"], SamplingParams(temperature=0, max_tokens=32)):
            print(output.outputs[0].text)

Names and arguments are vLLM's where vLLM has them; docs/python.md lists the differences.
"""
from hunch._hunch import EngineStats, version as __version__
from hunch.llm import LLM
from hunch.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from hunch.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

__all__ = ["LLM", "SamplingParams", "StructuredOutputsParams", "RequestOutputKind", "RequestOutput", "CompletionOutput",
    "Logprob", "RequestMetrics", "EngineStats", "__version__"]
