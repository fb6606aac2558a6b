"""What the GPU peers share: the card and its power, the process's start, the arithmetic of a model."""

import os
import threading
import time


def process_start():
    """Seconds since the epoch at which this process was started, so that the imports count."""
    with open("/proc/self/stat") as stat:
        ticks = int(stat.read().rsplit(")", 1)[1].split()[19])
    with open("/proc/uptime") as uptime:
        since_boot = float(uptime.read().split()[0])
    return time.time() - since_boot + ticks / os.sysconf("SC_CLK_TCK")


def card_name(torch, device):
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


def synchronize(torch, device):
    if device == "cuda":
        torch.cuda.synchronize()


class CardWatch:
    """Power and SM clock of the card that PyTorch uses, looked at ten times a second. Silent without nvidia-ml-py."""

    def __init__(self, torch, device, period=0.1):
        self.period = period
        self.watts, self.clocks = [], []
        self.stop = threading.Event()
        self.nvml = self.card = self.thread = None
        if device != "cuda":
            return
        try:
            import pynvml

            pynvml.nvmlInit()
            # By its identity: NVML's numbers do not follow CUDA_VISIBLE_DEVICES.
            self.card = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
            self.nvml = pynvml
        except Exception as failure:  # the figures are an extra: without them the benchmark is still one
            import sys

            print(f"no power figures: {failure}", file=sys.stderr)

    def __enter__(self):
        self.watts, self.clocks = [], []
        self.stop.clear()
        if self.nvml is not None:
            self.thread = threading.Thread(target=self._watch, daemon=True)
            self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def _watch(self):
        while not self.stop.wait(self.period):
            try:
                self.watts.append(self.nvml.nvmlDeviceGetPowerUsage(self.card) / 1000)
                self.clocks.append(self.nvml.nvmlDeviceGetClockInfo(self.card, self.nvml.NVML_CLOCK_SM))
            except self.nvml.NVMLError:
                return

    def columns(self):
        mean = lambda values: round(sum(values) / len(values), 1) if values else None
        return {"power_watts": mean(self.watts), "sm_clock_mhz": mean(self.clocks)}


def head_shape(config):
    """(query heads, key/value heads, dimension of a head)."""
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    dimension = getattr(config, "head_dim", None) or config.hidden_size // heads
    return heads, kv_heads, dimension


def flops_per_token(torch, model, seq):
    """FLOPs of the forward and backward pass per token, counted as Convoy does: 6 for each element of a matrix, the head's
    included and the looked-up tables not; causal attention within a sequence, 2.5 times as much backward as forward."""
    tables = {id(module.weight): module.weight for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    elements = sum(p.numel() for p in model.parameters() if p.dim() == 2 and id(p) not in tables)
    head = model.get_output_embeddings()
    if head is not None and id(head.weight) in tables:  # tied: the table is the head, too
        elements += head.weight.numel()
    heads, _, dimension = head_shape(model.config)
    attention = 2 * model.config.num_hidden_layers * seq * heads * dimension
    return 6 * elements + 3.5 * attention
