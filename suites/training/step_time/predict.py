"""Seconds of a training step for any layouts: kernels, communication, schedule, update."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from suites.training.layouts.layout import Layouts, Training
from suites.training.layouts.shape import TransformerShape
from suites.training.step_time.calibration import Calibration
from suites.training.step_time.collectives import Floats, all_to_all_s, ring_gather_s
from suites.training.step_time.gpu import Gpu
from suites.training.step_time.kernels import attention_flop, matmul_s
from suites.training.step_time.programs import TRAITS, ProgramTraits
from suites.training.step_time.stages import stages_of, pipeline_s


class Cluster(NamedTuple):
    """The GPUs and what connects them; rates are per GPU and direction."""

    gpu: Gpu
    node_size: int  # GPUs that share the fast link
    network_B_per_s: float


class StepSeconds(NamedTuple):
    """Seconds of a step, and what makes them."""

    matmul_s: Floats
    attention_s: Floats
    pointwise_s: Floats
    launch_s: Floats  # in which the GPU waits for the host
    tensor_s: Floats  # exposed, like the others below
    context_s: Floats
    expert_s: Floats
    shard_s: Floats  # gathering and reducing sharded parameters
    bubble_s: Floats
    reduction_s: Floats
    update_s: Floats
    total_s: Floats


class _Work(NamedTuple):
    """Seconds of one layer or head on one micro-batch: forward and backward."""

    matmul: tuple[Floats, Floats]
    attention: tuple[Floats, Floats]
    pointwise: tuple[Floats, Floats]


class StepModel:
    """The seconds of one model's steps on one cluster by one program, for arrays of layouts."""

    def __init__(self, shape: TransformerShape, training: Training, cluster: Cluster, calibration: Calibration, lora: bool = False, triton: bool = False, tuned: bool = False):
        self.shape, self.training, self.cluster, self.calibration = shape, training, cluster, calibration
        self.traits: ProgramTraits = calibration.traits(training.program)
        self.gpu = cluster.gpu
        self.rates = calibration.matmul(self.gpu.architecture)
        self.precision = training.precision if training.precision not in ("fp32", "fp16") else "bf16"
        self.lora, self.triton, self.tuned = lora, triton, tuned
        self.links = calibration.links(cluster)

    # kernels
    def _dense(self, tokens: Floats, sizes: list[tuple[Floats, Floats]], precision: str) -> tuple[Floats, Floats]:
        """Return forward and backward seconds of matmuls [tokens, inner] x [inner, outputs]."""
        gpu, rates = self.gpu, self.rates
        forward = sum(matmul_s(tokens, n, k, gpu, rates, precision) for k, n in sizes)
        inputs = sum(matmul_s(tokens, k, n, gpu, rates, precision) for k, n in sizes)
        weights = sum(matmul_s(k, n, tokens, gpu, rates, precision) for k, n in sizes)
        slow = 1.0 / (self.calibration.sustained(self.gpu, precision) * self.traits.sustained)
        backward = inputs * (1.0 if True else 0.0) + (0.0 if self.lora else weights)
        return np.asarray(forward * slow), np.asarray(backward * slow)

    def _layer(self, lay: Layouts, moe: bool, windowed: bool) -> _Work:
        s, tr, gpu = self.shape, self.traits, self.gpu
        tokens = lay.micro_batch_size * self.training.seq_len / lay.cp
        tp = lay.tp.astype(float)
        h = float(s.hidden_size)
        sizes: list[tuple[Floats, Floats]] = []
        one = np.ones_like(tp)
        if s.kv_lora_rank:
            if s.q_lora_rank:
                sizes += [(h * one, s.q_lora_rank * one), (s.q_lora_rank * one, s.query_size / tp)]
            else:
                sizes += [(h * one, s.query_size / tp)]
            keys = s.num_attention_heads * (s.head_dim - s.qk_rope_head_dim + s.value_dim)
            sizes += [(h * one, (s.kv_lora_rank + s.qk_rope_head_dim) * one), (s.kv_lora_rank * one, keys / tp)]
        else:
            sizes += [(h * one, (s.query_size + s.key_value_size) / tp)]
        sizes += [(s.attention_size / tp, h * one)]
        gate = 2 if s.gated else 1
        width = s.shared_intermediate_size if moe else s.intermediate_size
        if width:
            sizes += [(h * one, gate * width / tp), (width / tp, h * one)]
        forward, backward = self._dense(tokens, sizes, self.precision)
        linear_elements = sum(k + n for k, n in sizes)
        mlp_elements = width * (gate + 1) / tp if width else 0.0 * one
        if moe:
            routed = tokens * s.experts_per_token * self.calibration["moe_imbalance"]
            local = s.num_experts / lay.ep
            etp = lay.etp.astype(float)
            per = routed * (lay.ep * 1.0) / s.num_experts * np.where(etp < tp, 1.0 / tp * etp, 1.0)
            f_e, b_e = self._dense(np.maximum(per, 1.0), [(h * one, gate * s.moe_intermediate_size / etp), (s.moe_intermediate_size / etp, h * one)], self.precision)
            forward, backward = forward + local * f_e * self.calibration["grouped_factor"], backward + local * b_e * self.calibration["grouped_factor"]
            share = s.experts_per_token / tp
            mlp_elements = mlp_elements + share * s.moe_intermediate_size * (gate + 1)
            linear_elements = linear_elements + share * (2 * h + s.moe_intermediate_size * (gate + 1))
        seen = self._seen(windowed)
        flop = attention_flop(tokens, seen, s.query_size / tp, s.attention_size / tp)
        rate_f, rate_b = self.calibration.attention(gpu, tr.attention_kernel, s.head_dim, self.training.seq_len)
        slow = self.calibration["triton_factor"] if self.triton else 1.0
        att_f = flop / rate_f * slow
        att_b = 2.5 * flop / rate_b * slow
        # memory-bound operations: elements per token
        spread = np.where(lay.sequence_parallel > 0, tp, 1.0)
        norms = (2 * 2 + 2 * 3) * h / spread  # two norms (read, write), two additions
        rope = 2 * (s.query_size + s.key_value_size / 2) / tp
        f_el = norms + rope + mlp_elements
        b_el = (2 * 3 + 2 * 2) * h / spread + rope + 1.7 * mlp_elements
        if moe:
            f_el = f_el + 4 * s.experts_per_token * h / tp
            b_el = b_el + 4 * s.experts_per_token * h / tp
        quantised_B = self.calibration["quantised_B"] if self.precision in ("fp8", "mxfp8", "nvfp4") else 0.0
        bw = gpu.memory_B_per_s * self.calibration["memory_share"]
        extra = quantised_B * linear_elements * tokens / bw
        point_f = 2.0 * f_el * tokens * tr.pointwise_factor / bw + 0.5 * extra
        point_b = 2.0 * b_el * tokens * tr.pointwise_factor / bw + 1.0 * extra
        # gradients of weights are added to those of earlier micro-batches
        if not self.lora:
            params = s.layer_parameters(moe) if not moe else 0
            if moe:
                params_v = (s.layer_parameters(True) - s.num_experts * s.expert_parameters) / tp + s.num_experts * s.expert_parameters / lay.ep / lay.etp
            else:
                params_v = params / tp
            point_b = point_b + np.where(lay.micro_batches > 1, tr.accumulate_B, 0.0) * params_v / bw
        return _Work((forward, backward), (att_f, att_b), (point_f, point_b))

    def _seen(self, windowed: bool) -> float:
        s, q = self.shape, float(self.training.seq_len)
        w = float(s.sliding_window)
        if windowed and w and w < q:
            return w - w * w / (2 * q)
        return q / 2

    def _head(self, lay: Layouts) -> _Work:
        s, tr = self.shape, self.traits
        tokens = lay.micro_batch_size * self.training.seq_len / lay.cp
        tp = lay.tp.astype(float)
        one = np.ones_like(tp)
        f, b = self._dense(tokens, [(s.hidden_size * one, s.vocab_size / tp)], "bf16")
        bw = self.gpu.memory_B_per_s * self.calibration["memory_share"]
        loss = tokens * s.vocab_size / tp * tr.logit_B / bw
        zero = 0.0 * one
        return _Work((f, b), (zero, zero), (0.5 * loss, 0.5 * loss + np.where(lay.micro_batches > 1, tr.accumulate_B, 0.0) * s.vocab_size * s.hidden_size / tp / bw))

    # communication of one layer
    def _tensor(self, lay: Layouts, recompute: Floats) -> Floats:
        """Return the exposed seconds of a layer's tensor-parallel collectives, forward and backward."""
        tokens = lay.micro_batch_size * self.training.seq_len / lay.cp
        size_B = 2.0 * tokens * self.shape.hidden_size
        tp = lay.tp.astype(float)
        each = ring_gather_s(size_B, tp, np.ones_like(tp), self.links)
        count = 4.0 + 6.0 + 4.0 * recompute
        return (each.bytes_s * self.traits.tp_exposed + each.latency_s) * count

    def _context(self, lay: Layouts, attention_s: Floats) -> Floats:
        tokens = lay.micro_batch_size * self.training.seq_len / lay.cp
        size_B = 2.0 * tokens * self.shape.key_value_size / lay.tp
        cp = lay.cp.astype(float)
        across = np.where(lay.tp * lay.cp > self.cluster.node_size, self.links.network_B_per_s, self.links.node_B_per_s)
        each_s = size_B / across * (cp - 1)
        exposed = np.maximum(3 * each_s - 0.8 * attention_s, 0.1 * 3 * each_s)
        return np.where(cp > 1, exposed + 3 * (cp - 1) * 2e-5, 0.0)

    def _expert(self, lay: Layouts) -> Floats:
        s = self.shape
        tokens = lay.micro_batch_size * self.training.seq_len / lay.cp
        size_B = 2.0 * tokens * s.experts_per_token * s.hidden_size / lay.tp
        one = all_to_all_s(size_B, lay.ep.astype(float), lay.etp.astype(float), self.links)
        return 4 * (one.bytes_s * self.calibration["expert_exposed"] + one.latency_s)

    def seconds(self, lay: Layouts) -> StepSeconds:
        """Return the seconds of a step of each layout."""
        s, tr, cal = self.shape, self.traits, self.calibration
        n = len(lay.dp)
        full = lay.recompute == 2
        m = lay.micro_batches.astype(float)
        kinds = {}
        for moe, windowed in zip(s.layers_are_moe, s.layers_are_windowed):
            kinds[(moe, windowed)] = kinds.get((moe, windowed), 0) + 1
        L = s.num_hidden_layers
        tot = {k: np.zeros(n) for k in ("matmul", "attention", "pointwise", "launch", "tensor", "context", "expert", "shard")}
        for (moe, windowed), count in kinds.items():
            w = self._layer(lay, moe, windowed)
            share = count / L
            again = np.where(full, 1.0, 0.0)
            mm = w.matmul[0] * (1 + again) + w.matmul[1]
            at = w.attention[0] * (1 + again) + w.attention[1]
            pw = w.pointwise[0] * (1 + again) + w.pointwise[1]
            te = self._tensor(lay, again)
            cx = self._context(lay, at)
            ex = self._expert(lay) if moe else np.zeros(n)
            launch = (tr.layer_launch_s + tr.tp_launch_s * (lay.tp > 1)) * (1 + again / 3) * (cal["moe_launch"] if moe else 1.0)
            across = (lay.pp > 1) & (lay.gpus > self.cluster.node_size) & (lay.tp > 1)
            launch = launch + np.where(across, tr.pipeline_tp_s * lay.tp, 0.0)
            far = np.maximum(lay.tp / self.cluster.node_size - 1, 0.0) * tr.tp_network_s * (10 + 4 * again)
            busy = mm + at + pw + te + cx + ex
            wait = np.maximum(launch - busy, 0.0) + far
            shard_comm = self._shard_layer(lay, moe, again)
            shard = np.where(lay.zero == 3, np.maximum(shard_comm - busy - wait, 0.0) + cal["shard_exposed"] * np.minimum(shard_comm, busy + wait), 0.0)
            for name, value in (("matmul", mm), ("attention", at), ("pointwise", pw), ("launch", wait), ("tensor", te), ("context", cx), ("expert", ex), ("shard", shard)):
                tot[name] = tot[name] + value * share
        layer_s = sum(tot.values())
        hw = self._head(lay)
        head_s = sum(hw.matmul) + sum(hw.pointwise)
        loss_s = self._logits_B(lay) / 2 * tr.logit_B / (self.gpu.memory_B_per_s * cal["memory_share"])
        step, work_share = np.zeros(n), np.zeros(n)
        for pp in np.unique(lay.pp):
            at_pp = lay.pp == pp
            layers, head, loss = stages_of(s, int(pp), self.training.program)
            counts = np.array(layers, dtype=float)
            stage = layer_s[at_pp, None] * counts[None, :]
            stage[:, head] += head_s[at_pp]
            if loss != head:
                some = lay.only(at_pp)
                passed = 2 * self._logits_B(some) / self._neighbour_B_per_s(some)
                stage[:, head] += passed - loss_s[at_pp]
                stage[:, loss] += passed + loss_s[at_pp]
            if pp > 1:
                stage = stage + self._send(lay.only(at_pp))[:, None]
            step[at_pp] = pipeline_s(stage, m[at_pp], lay.virtual_stages[at_pp])
        ideal = m * (layer_s * L + head_s) / lay.pp
        reduction, update = self._reduction(lay, layer_s * L / lay.pp), self._update(lay)
        straggle = 1 + cal["straggler"] * np.sqrt(2 * np.log(np.maximum(lay.gpus / self.cluster.node_size, 1.0)))
        total = ((step + reduction) * straggle + update) * (cal["mlperf_factor"] if self.tuned else 1.0) + cal["step_s"]
        per = m * L / lay.pp
        return StepSeconds(
            *(tot[k] * per if k not in ("matmul", "pointwise") else tot[k] * per + m / lay.pp * (sum(hw.matmul) if k == "matmul" else sum(hw.pointwise)) for k in tot),
            step - ideal, reduction, update, total,
        )

    def _send(self, lay: Layouts) -> Floats:
        """Return the exposed seconds of passing a micro-batch on and its gradient back."""
        tokens = lay.micro_batch_size * self.training.seq_len / lay.cp
        size_B = 2.0 * tokens * self.shape.hidden_size / np.where(lay.sequence_parallel > 0, lay.tp, 1)
        return (2 * size_B / self._neighbour_B_per_s(lay) * self.calibration["send_exposed"] + 2e-5) * lay.virtual_stages

    def _neighbour_B_per_s(self, lay: Layouts) -> Floats:
        """Return the rate to the next pipeline rank, which lies dp x tp x cp GPUs further."""
        inside = lay.dp * lay.tp * lay.cp < self.cluster.node_size
        return np.where(inside, self.links.node_B_per_s, self.links.network_B_per_s)

    def _logits_B(self, lay: Layouts) -> Floats:
        """Return the bytes of a micro-batch's logits in 16 bits."""
        return 2.0 * lay.micro_batch_size * self.training.seq_len / lay.cp * self.shape.vocab_size / lay.tp

    def _rank_parameters(self, lay: Layouts) -> tuple[Floats, Floats]:
        """Return the parameters per rank before sharding: dense ones of the fullest stage, and experts'."""
        s = self.shape
        experts = sum(s.layers_are_moe) * s.num_experts * s.expert_parameters
        vocabulary = s.vocab_size * s.hidden_size
        dense = s.parameters - experts - vocabulary * (1 if s.tie_word_embeddings else 2)
        return dense / lay.pp / lay.tp + vocabulary / lay.tp * np.where((lay.pp == 1) & (not s.tie_word_embeddings), 2, 1), experts / lay.pp / lay.ep / lay.etp

    def _shard_layer(self, lay: Layouts, moe: bool, again: Floats) -> Floats:
        s = self.shape
        params = s.layer_parameters(moe) / lay.tp
        group = lay.shard_size.astype(float)
        inner = lay.tp.astype(float)
        gather = ring_gather_s(2.0 * params, group, inner, self.links)
        reduce = ring_gather_s(self.traits.reduced_B * params, group, inner, self.links)
        return 2 * (gather.bytes_s + gather.latency_s) + (reduce.bytes_s + reduce.latency_s)

    def _reduction(self, lay: Layouts, micro_s: Floats) -> Floats:
        """Return the exposed seconds of reducing gradients and gathering parameters, once per step."""
        s, tr = self.shape, self.traits
        dense, experts = self._rank_parameters(lay)
        group, inner = (lay.dp * lay.cp).astype(float), lay.tp.astype(float)
        def both(size: Floats, group: Floats, inner: Floats) -> tuple[Floats, Floats]:
            reduce = ring_gather_s(tr.reduced_B * size, group, inner, self.links)
            gather = ring_gather_s(2.0 * size, group, inner, self.links)
            r, g = reduce.bytes_s + reduce.latency_s, gather.bytes_s + gather.latency_s
            if self.training.program == "nanotron":
                buckets = np.where(lay.zero == 0, np.maximum(size / self.calibration["bucket_parameters"], 1.0), 1.0)
                r = 2 * (reduce.bytes_s + buckets * reduce.latency_s)
                g = np.where(lay.zero > 0, g, 0.0)
            else:
                r, g = np.where(lay.zero == 0, 2 * r, r), np.where(lay.zero == 0, 0.0, g)
            return r, g
        r, g = both(dense, group, inner)
        if s.num_experts:
            re, ge = both(experts, np.maximum(group * lay.tp / lay.ep / lay.etp, 1.0), lay.ep * lay.etp * 1.0)
            r, g = r + re, g + ge
        window = np.where(lay.virtual_stages > 1, np.minimum(lay.micro_batches, lay.pp), 1)
        b, f = 0.66 * micro_s * window, 0.33 * micro_s * window
        over_r = tr.reduction_overlaps or self.training.program == "nanotron"
        hide_r = b if tr.reduction_overlaps else (np.where(lay.zero == 0, b, 0.0) if self.training.program == "nanotron" else 0.0)
        r = np.maximum(r - hide_r, self.calibration["reduction_exposed"] * r)
        g = np.maximum(g - (f if tr.gather_overlaps else 0.0), self.calibration["reduction_exposed"] * g)
        return np.where(lay.zero == 3, 0.0, r + g)

    def _update(self, lay: Layouts) -> Floats:
        dense, experts = self._rank_parameters(lay)
        over = np.where(lay.zero > 0, lay.shard_size, 1)
        over_e = np.where(lay.zero > 0, np.maximum(lay.shard_size * lay.tp / lay.ep / lay.etp, 1), 1)
        if self.lora:
            return np.zeros(len(lay.dp))
        return self.traits.update_B * (dense / over + experts / over_e) / (self.gpu.memory_B_per_s * self.calibration["memory_share"])
