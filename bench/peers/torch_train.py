#!/usr/bin/env python3
"""Times training steps of PyTorch + transformers on the CPU, to compare Convoy with.

Builds a causal language model from a config.json with random weights, trains it on random tokens and prints one line of
JSON: the tokens per second of each step, their median after the warm-up, the losses, the peak resident memory, and the
time from the start of the process to the end of the first step.

    torch_train.py --config config.json --dtype bf16 --batch 2 --seq 512 --accum 4 --steps 10 --threads 8

Element types:
  f32            weights, activations and optimizer in f32
  bf16           bf16 weights and activations; f32 master weights and moments, copied back after each step
  bf16-autocast  f32 weights and optimizer; the forward pass under torch.autocast

The loss is the one of Hugging Face: labels equal to the inputs, shifted by the model; with accumulation, the sum over
all target tokens divided by their number (num_items_in_batch).
"""

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import time


def process_start():
    """Seconds since the epoch at which this process was started, so that the imports count."""
    with open("/proc/self/stat") as stat:
        ticks = int(stat.read().rsplit(")", 1)[1].split()[19])
    with open("/proc/uptime") as uptime:
        since_boot = float(uptime.read().split()[0])
    return time.time() - since_boot + ticks / os.sysconf("SC_CLK_TCK")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="a Hugging Face config.json, or the folder that holds it")
    parser.add_argument("--dtype", choices=["f32", "bf16", "bf16-autocast"], default="f32")
    parser.add_argument("--batch", type=int, default=1, help="sequences in a micro-batch")
    parser.add_argument("--seq", type=int, default=128, help="tokens in a sequence")
    parser.add_argument("--accum", type=int, default=1, help="micro-batches in a step")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3, help="steps left out of the median")
    parser.add_argument("--threads", type=int, default=0, help="0: PyTorch's own choice")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--max-grad-norm", type=float, default=1.0, help="0: no clipping")
    parser.add_argument("--attention", choices=["sdpa", "eager"], default="sdpa")
    parser.add_argument("--checkpointing", action="store_true", help="recompute each block in the backward pass")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--no-fused", action="store_true", help="AdamW without the fused kernel")
    parser.add_argument("--init", help="a model folder to take the weights from, instead of random ones")
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()
    for name in ("batch", "accum", "steps"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if options.seq < 2:
        parser.error("--seq must be at least 2: a sequence of one token has no target")
    return options


def make_model(options, transformers, torch):
    config = transformers.AutoConfig.from_pretrained(options.config)
    config.use_cache = False
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
    if options.init:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            options.init, config=config, dtype=dtype, attn_implementation=options.attention
        )
    else:
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=options.attention
        )
    if options.checkpointing:
        model.gradient_checkpointing_enable()
    return model.train()


class Optimizer:
    """AdamW; for bf16 weights over f32 master copies, which are rounded back into the weights after each step."""

    def __init__(self, options, torch, model):
        self.torch = torch
        self.weights = [p for p in model.parameters() if p.requires_grad]
        self.masters = self.weights
        if options.dtype == "bf16":
            self.masters = [p.detach().float().requires_grad_() for p in self.weights]
        settings = {"lr": options.lr, "weight_decay": options.weight_decay}
        self.fused = not options.no_fused
        if self.fused:
            try:
                self.adam = torch.optim.AdamW(self.masters, fused=True, **settings)
            except RuntimeError as failure:  # a PyTorch without the fused kernel for the CPU
                print(f"fused AdamW is not available ({failure}); the plain one is used", file=sys.stderr)
                self.fused = False
        if not self.fused:
            self.adam = torch.optim.AdamW(self.masters, **settings)
        self.max_norm = options.max_grad_norm

    def step(self):
        if self.masters is not self.weights:
            for master, weight in zip(self.masters, self.weights):
                master.grad = None if weight.grad is None else weight.grad.float()
                weight.grad = None
        if self.max_norm > 0:
            self.torch.nn.utils.clip_grad_norm_(self.masters, self.max_norm)
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        if self.masters is not self.weights:
            with self.torch.no_grad():
                self.torch._foreach_copy_(self.weights, self.masters)


def train_step(options, torch, model, optimizer, tokens):
    """One optimizer step over `accum` micro-batches; returns the mean loss of a target token."""
    targets = options.accum * options.batch * (options.seq - 1)
    total = 0.0
    for micro in tokens:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.dtype == "bf16-autocast"):
            loss = model(input_ids=micro, labels=micro, num_items_in_batch=targets).loss
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total


def main():
    started = process_start()
    options = arguments()
    if options.threads > 0:  # before PyTorch makes its pool
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
    import torch
    import transformers

    if options.threads > 0:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    transformers.utils.logging.set_verbosity_error()
    model = make_model(options, transformers, torch)
    optimizer = Optimizer(options, torch, model)
    runner = torch.compile(model) if options.compile else model
    generator = torch.Generator().manual_seed(options.seed)
    vocabulary = model.config.vocab_size

    losses, seconds, first_done = [], [], None
    for _ in range(options.steps):
        tokens = torch.randint(0, vocabulary, (options.accum, options.batch, options.seq), generator=generator)
        begin = time.perf_counter()
        losses.append(train_step(options, torch, runner, optimizer, tokens))
        seconds.append(time.perf_counter() - begin)
        if first_done is None:
            first_done = time.time() - started

    tokens_per_step = options.accum * options.batch * options.seq
    timed = seconds[options.warmup :] or seconds
    print(
        json.dumps(
            {
                "trainer": "torch",
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "cpu": cpu_name(),
                "threads": torch.get_num_threads(),
                "model_type": model.config.model_type,
                "parameters": sum(p.numel() for p in model.parameters()),
                "dtype": options.dtype,
                "batch": options.batch,
                "seq": options.seq,
                "accum": options.accum,
                "steps": options.steps,
                "attention": options.attention,
                "checkpointing": options.checkpointing,
                "compile": options.compile,
                "fused_adamw": optimizer.fused,
                "warmup_steps_left_out": options.steps - len(timed),
                "tokens_per_second": round(tokens_per_step / statistics.median(timed), 3),
                "tokens_per_second_by_step": [round(tokens_per_step / s, 3) for s in seconds],
                "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "seconds_to_first_step": round(first_done, 3),
                "losses": losses,
            }
        )
    )


def cpu_name():
    try:
        with open("/proc/cpuinfo") as info:
            for line in info:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()


if __name__ == "__main__":
    main()
