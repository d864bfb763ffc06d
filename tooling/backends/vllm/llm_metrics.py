"""What the engine says of itself, among Triton's metrics under vLLM's own names. Layer: backend."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils
from vllm.v1.metrics.loggers import StatLoggerBase

_GAUGES = {
    "vllm:num_requests_running": "Requests in the running batch",
    "vllm:num_requests_waiting": "Requests that wait for a place in the running batch",
    "vllm:kv_cache_usage_perc": "Share of the KV cache's blocks in use, 0 to 1",
}
_COUNTERS = {
    "vllm:prompt_tokens_total": "Prompt tokens computed",
    "vllm:generation_tokens_total": "Tokens generated",
    "vllm:num_preemptions_total": "Sequences that gave their KV blocks up and were computed anew",
    "vllm:prefix_cache_queries_total": "Prompt tokens looked up in the prefix cache",
    "vllm:prefix_cache_hits_total": "Prompt tokens found in the prefix cache",
    "vllm:spec_decode_num_draft_tokens_total": "Tokens proposed by speculation",
    "vllm:spec_decode_num_accepted_tokens_total": "Proposed tokens that were kept",
}


def stat_logger(labels):
    """What makes the engine's logger, as vLLM calls it."""
    metrics = {}
    for kind, described in ((pb_utils.MetricFamily.GAUGE, _GAUGES), (pb_utils.MetricFamily.COUNTER, _COUNTERS)):
        for name, text in described.items():
            family = pb_utils.MetricFamily(name=name, description=text, kind=kind)
            metrics[name.removeprefix("vllm:")] = (family, family.Metric(labels=labels))
    return lambda vllm_config, engine_index=0: _Logger(metrics)


class _Logger(StatLoggerBase):
    def __init__(self, metrics):
        self._metrics = metrics  # families too: a metric ends with its family

    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0):
        if scheduler_stats is not None:
            self._set("num_requests_running", scheduler_stats.num_running_reqs)
            self._set("num_requests_waiting", scheduler_stats.num_waiting_reqs)
            self._set("kv_cache_usage_perc", scheduler_stats.kv_cache_usage)
            prefix, drafts = scheduler_stats.prefix_cache_stats, scheduler_stats.spec_decoding_stats
            if prefix is not None:
                self._add("prefix_cache_queries_total", prefix.queries)
                self._add("prefix_cache_hits_total", prefix.hits)
            if drafts is not None:
                self._add("spec_decode_num_draft_tokens_total", drafts.num_draft_tokens)
                self._add("spec_decode_num_accepted_tokens_total", drafts.num_accepted_tokens)
        if iteration_stats is not None:
            self._add("prompt_tokens_total", iteration_stats.num_prompt_tokens)
            self._add("generation_tokens_total", iteration_stats.num_generation_tokens)
            self._add("num_preemptions_total", iteration_stats.num_preempted_reqs)

    def log_engine_initialized(self):
        pass

    def _set(self, name, value):
        self._metrics[name][1].set(value)

    def _add(self, name, value):
        if value:
            self._metrics[name][1].increment(value)
