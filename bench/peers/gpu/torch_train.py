#!/usr/bin/env python3
"""Times training steps of PyTorch + transformers on one GPU, to compare Convoy with.

Builds a causal language model from a config.json with random weights, trains it on random tokens and prints one line of
JSON with the columns of Convoy's train_bench: the tokens per second of the median step after the warm-up, the losses, the
peak memory, the time from the start of the process to the end of the first step; and the card with its power.

    torch_train.py --config qwen2.5-1.5b.json --batch 8 --seq 4096 --accum 4 --steps 13 --compile
    torch_train.py --config whisper-large-v3.json --batch 16 --steps 13

Whisper and GLM-ASR hear a window of random features a row; --seq counts the labels, and the line has multiples of real
time. Nothing is fetched: the weights are random, too.

Weights, gradients and AdamW's moments are bf16 (fused AdamW right on the bf16 parameters): the least memory and the
fastest step that PyTorch has without code of one's own. --dtype f32 has all of them in f32.

The loss is the one of Hugging Face: labels equal to the inputs, shifted by the model; with accumulation, the sum over
all target tokens divided by their number (num_items_in_batch).

A configuration that does not fit prints a line with "error" and ends with status 4.
"""

import argparse
import contextlib
import json
import os
import resource
import statistics
import sys
import time

import common
import hearing

ATTENTION = ["sdpa", "flash", "cudnn", "eager", "flash_attention_2"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="a Hugging Face config.json, or the folder that holds it")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="bf16")
    parser.add_argument("--batch", type=int, default=1, help="sequences in a micro-batch")
    parser.add_argument("--seq", type=int, help="tokens in a sequence (1024); of its labels, where a model hears (128)")
    parser.add_argument("--accum", type=int, default=1, help="micro-batches in a step")
    parser.add_argument("--steps", type=int, default=13)
    parser.add_argument("--warmup", type=int, default=3, help="steps left out of the median")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--max-grad-norm", type=float, default=1.0, help="0: no clipping")
    parser.add_argument(
        "--attention",
        choices=ATTENTION,
        default="sdpa",
        help="sdpa: PyTorch's choice of kernel; flash, cudnn: that one of sdpa's kernels, or an error; eager: the matrix of "
        "scores; flash_attention_2: the package of that name",
    )
    parser.add_argument(
        "--compile", nargs="?", const="default", metavar="MODE", help="torch.compile the model, in this mode"
    )
    parser.add_argument(
        "--recompute",
        nargs="?",
        const="full",
        default="none",
        choices=["none", "full"],
        help="recompute each block in the backward pass (gradient checkpointing)",
    )
    parser.add_argument("--deterministic", action="store_true", help="only algorithms that give the same bits each time")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to try the script without a GPU")
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()
    for name in ("batch", "accum", "steps"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if options.seq is not None and options.seq < 2:
        parser.error("--seq must be at least 2: a sequence of one token has no target")
    return options


def make_model(options, transformers, torch):
    config = transformers.AutoConfig.from_pretrained(options.config)
    config.use_cache = False
    options.hears = hearing.hears(config)
    if options.seq is None:
        options.seq = 128 if options.hears else 1024
    make = transformers.AutoModelForCausalLM.from_config
    if options.hears:
        make = hearing.model_class(transformers, config)._from_config
    attention = "sdpa" if options.attention in ("flash", "cudnn") else options.attention
    # On the device from the first: drawing billions of weights takes minutes on a CPU.
    with torch.device(options.device):
        model = make(
            config, dtype=torch.bfloat16 if options.dtype == "bf16" else torch.float32, attn_implementation=attention
        )
    if options.recompute == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def attention_kernels(options, torch):
    """The context in which sdpa takes the kernel asked for."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    backend = backends.get(options.attention)
    return contextlib.nullcontext() if backend is None else sdpa_kernel(backend)


def train_step(options, torch, model, weights, adam, tokens):
    """One optimizer step over `accum` micro-batches; the mean loss of a target token, still on the device."""
    targets = options.accum * options.batch * (options.seq - 1)
    total = None
    for micro in tokens:
        if options.hears:  # as many targets in each: the mean of the means is the mean
            loss = model(**micro, use_cache=False).loss / options.accum
        else:
            loss = model(input_ids=micro, labels=micro, num_items_in_batch=targets).loss
        loss.backward()
        total = loss.detach() if total is None else total + loss.detach()
    if options.max_grad_norm > 0:
        torch.nn.utils.clip_grad_norm_(weights, options.max_grad_norm)
    adam.step()
    adam.zero_grad(set_to_none=True)
    return total


def be_deterministic(torch):
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # costs time and changes no result
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def description(options, torch, transformers, model):
    return {
        "trainer": "torch",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": common.card_name(torch, options.device),
        "model_type": model.config.model_type,
        "parameters": sum(p.numel() for p in model.parameters()),
        "dtype": options.dtype,
        "batch": options.batch,
        "seq": options.seq,
        "accum": options.accum,
        "steps": options.steps,
        "attention": options.attention,
        "compile": options.compile,
        "recompute": options.recompute,
        "deterministic": options.deterministic,
    }


def memory(options, torch):
    columns = {"peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if options.device == "cuda":
        # Reserved is what the card must have; allocated, what tensors took of it.
        columns["peak_device_bytes"] = torch.cuda.max_memory_reserved()
        columns["peak_allocated_bytes"] = torch.cuda.max_memory_allocated()
    return columns


def train(options, torch, model, started):
    weights = [p for p in model.parameters() if p.requires_grad]
    adam = torch.optim.AdamW(weights, lr=options.lr, weight_decay=options.weight_decay, fused=True)
    runner = model
    if options.compile is not None:
        runner = torch.compile(model, mode=None if options.compile == "default" else options.compile)
    generator = torch.Generator(device=options.device).manual_seed(options.seed)
    shape = (options.accum, options.batch, options.seq)
    watch = common.CardWatch(torch, options.device)
    losses, seconds, first_done = [], [], None

    def step():
        if options.hears:
            given = (model.config, options.batch, options.seq, model.dtype, torch, generator, options.device)
            tokens = [hearing.random_batch(*given) for _ in range(options.accum)]
        else:
            tokens = torch.randint(0, model.config.vocab_size, shape, generator=generator, device=options.device)
        common.synchronize(torch, options.device)
        begin = time.perf_counter()
        loss = train_step(options, torch, runner, weights, adam, tokens)
        losses.append(loss.item())
        common.synchronize(torch, options.device)
        seconds.append(time.perf_counter() - begin)

    with attention_kernels(options, torch):
        warmup = min(options.warmup, options.steps - 1)
        for _ in range(warmup):
            step()
            first_done = first_done or time.time() - started
        with watch:  # the power of the steps that count
            for _ in range(options.steps - warmup):
                step()
                first_done = first_done or time.time() - started
    timed = seconds[warmup:]
    tokens_per_step = options.accum * options.batch * options.seq
    extra = {}
    if options.hears:
        tokens_per_step += options.accum * options.batch * hearing.places(model.config)
        seconds_heard = hearing.audio_seconds(model.config, options.accum * options.batch)
        extra = {"audio_seconds": seconds_heard, "times_real_time": round(seconds_heard / statistics.median(timed), 1)}
    rate = tokens_per_step / statistics.median(timed)
    return {
        "warmup_steps_left_out": warmup,
        "tokens_per_second": round(rate, 3),
        "tokens_per_second_by_step": [round(tokens_per_step / s, 3) for s in seconds],
        **extra,
        "gflops": None if options.hears else round(rate * common.flops_per_token(torch, model, options.seq) * 1e-9, 3),
        **memory(options, torch),
        "seconds_to_first_step": round(first_done, 3),
        **watch.columns(),
        "losses": losses,
    }


def main():
    started = common.process_start()
    options = arguments()
    if options.deterministic:  # before cuBLAS starts
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch
    import transformers

    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("PyTorch sees no GPU; --device cpu tries the script without one")
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")  # f32 products in TF32, as trainers run them
    if options.deterministic:
        be_deterministic(torch)
    transformers.utils.logging.set_verbosity_error()
    line, status = {"trainer": "torch", "config": options.config}, 0
    try:
        model = make_model(options, transformers, torch)
        line = description(options, torch, transformers, model)
        line.update(train(options, torch, model, started))
    except torch.OutOfMemoryError as failure:
        line.update({"error": str(failure).splitlines()[0], **memory(options, torch)})
        status = 4
    print(json.dumps(line))
    sys.exit(status)


if __name__ == "__main__":
    main()
