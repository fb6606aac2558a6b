#!/usr/bin/env python3
"""Measures what one GPU can do at best with the shapes of a model, through PyTorch: matrix products, attention, copies on
the device and to the host. One line of JSON each; --out also writes them as Convoy's file of ceilings (docs/benchmarks.md).

    ceilings.py --config qwen2.5-7b.json --batch 2 --seq 4096 --sequences 1024 4096 16384 --out h200.json

Every figure is a mean over --seconds of running without a pause, on random data: a card draws less power on zeros, runs
faster then, and in the first moments before it is warm. Operands change between runs where they are small, so that they
do not stay in the card's cache more than in training.
"""

import argparse
import datetime
import json
import sys
import time

import common

SETS_BYTES = 512 << 20  # operands of a product together, at least, as far as --sets allows


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="a Hugging Face config.json, or the folder that holds it")
    parser.add_argument("--batch", type=int, default=4, help="sequences in a micro-batch")
    parser.add_argument("--seq", type=int, default=4096, help="tokens in a sequence")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1024, 4096, 16384], help="lengths for attention")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each measurement runs")
    parser.add_argument("--sets", type=int, default=4, help="the most sets of operands of a small product")
    parser.add_argument("--square", type=int, default=8192, help="size of a square product beside the model's; 0: none")
    parser.add_argument("--copy-bytes", type=int, default=2 << 30)
    parser.add_argument("--link-bytes", type=int, default=1 << 30)
    parser.add_argument("--out", help="also write the file of ceilings")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to try the script without a GPU")
    return parser.parse_args()


class Bench:
    def __init__(self, options, torch):
        self.options, self.torch = options, torch
        self.watch = common.CardWatch(torch, options.device)
        self.card = common.card_name(torch, options.device)

    def wait(self):
        common.synchronize(self.torch, self.options.device)

    def sustained(self, run):
        """Seconds of one run(i), over --seconds of them; with the card's power and clock."""
        for i in range(3):
            run(i)
        self.wait()
        begin = time.perf_counter()
        run(3)
        self.wait()
        # Some 50 ms between waits: the queue never empties for long, nor fills up.
        chunk = max(1, int(0.05 / max(1e-6, time.perf_counter() - begin)))
        runs = 0
        with self.watch:
            begin = time.perf_counter()
            while True:
                for i in range(chunk):
                    run(runs + i)
                runs += chunk
                self.wait()
                spent = time.perf_counter() - begin
                if spent >= self.options.seconds:
                    return spent / runs, {"runs": runs, "seconds": round(spent, 3), **self.watch.columns()}

    def line(self, measure, columns):
        record = {"measure": measure, "card": self.card, **columns}
        print(json.dumps(record), flush=True)
        return record


def products_of(config, tokens, square):
    """(name, m, n, k) of the model's products, fused as Convoy fuses them, in the three forms of training."""
    heads, kv_heads, dimension = common.head_shape(config)
    width = config.hidden_size
    mlp = getattr(config, "intermediate_size", None) or 4 * width
    layers = [
        ("qkv", (heads + 2 * kv_heads) * dimension, width),
        ("o", width, heads * dimension),
        ("gate_up", 2 * mlp, width),
        ("down", width, mlp),
        ("head", config.vocab_size, width),
    ]
    for name, out, inner in layers:
        yield f"{name} forward", "nt", tokens, out, inner  # y = x · Wᵀ
        yield f"{name} input gradient", "nn", tokens, inner, out  # dx = dy · W
        yield f"{name} weight gradient", "tn", out, inner, tokens  # dW = dyᵀ · x
    if square > 0:
        yield "square", "nn", square, square, square


def matrix_products(bench, config):
    torch, options = bench.torch, bench.options
    records = []
    for name, form, m, n, k in products_of(config, options.batch * options.seq, options.square):
        sets = max(1, min(options.sets, SETS_BYTES // (2 * (m * k + k * n + m * n)) + 1))
        random = lambda *shape: torch.randn(shape, device=options.device).to(torch.bfloat16)
        a = [random(k, m).t() if form == "tn" else random(m, k) for _ in range(sets)]
        b = [random(n, k).t() if form == "nt" else random(k, n) for _ in range(sets)]
        y = [torch.empty(m, n, device=options.device, dtype=torch.bfloat16) for _ in range(sets)]
        seconds, columns = bench.sustained(lambda i: torch.mm(a[i % sets], b[i % sets], out=y[i % sets]))
        rate = 2 * m * n * k / seconds * 1e-12
        records.append(
            bench.line("matrix_product", {"name": name, "m": m, "n": n, "k": k, "dtype": "bf16", "tflops": rate, **columns})
        )
        del a, b, y
    return records


def attention(bench, config):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch, options = bench.torch, bench.options
    heads, kv_heads, dimension = common.head_shape(config)
    kernels = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    if options.device == "cpu":
        kernels = {"flash": SDPBackend.FLASH_ATTENTION}
    attend = torch.nn.functional.scaled_dot_product_attention
    records = []
    for seq in options.sequences:
        rows = max(1, options.batch * options.seq // seq)
        random = lambda count: torch.randn(
            rows, count, seq, dimension, device=options.device, dtype=torch.bfloat16
        ).requires_grad_()
        for kernel, backend in kernels.items():
            shape = {"kernel": kernel, "seq": seq, "rows": rows, "heads": heads, "kv_heads": kv_heads, "head_dim": dimension}
            flops = 2 * rows * heads * seq * seq * dimension  # causal: half of the square
            try:
                with sdpa_kernel(backend):
                    q, k, v = random(heads), random(kv_heads), random(kv_heads)
                    grouped = {"enable_gqa": True} if kv_heads != heads else {}
                    out = attend(q, k, v, is_causal=True, **grouped)
                    dout = torch.randn_like(out)

                    def forward(_):
                        with torch.no_grad():
                            attend(q, k, v, is_causal=True, **grouped)

                    def backward(_):
                        torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

                    forward_seconds, columns = bench.sustained(forward)
                    backward_seconds, backward_columns = bench.sustained(backward)
            except RuntimeError as failure:  # a kernel that does not take these shapes
                bench.line("attention", {**shape, "error": str(failure).splitlines()[0]})
                continue
            finally:
                q = k = v = out = dout = None
            rates = {
                "forward_tflops": flops / forward_seconds * 1e-12,
                "backward_tflops": 2.5 * flops / backward_seconds * 1e-12,
                "forward_power_watts": columns["power_watts"],
                "backward_power_watts": backward_columns["power_watts"],
            }
            records.append(bench.line("attention", {**shape, **rates}))
    return records


def copy(bench):
    torch, options = bench.torch, bench.options
    source = torch.randint(-128, 127, (options.copy_bytes,), device=options.device, dtype=torch.int8)
    target = torch.empty_like(source)
    seconds, columns = bench.sustained(lambda _: target.copy_(source))
    rate = 2 * options.copy_bytes / seconds * 1e-9
    return bench.line("copy", {"bytes": options.copy_bytes, "gb_per_second": rate, **columns})


def link(bench):
    """Pinned host memory to the device, back, and both ways at once."""
    torch, options = bench.torch, bench.options
    if options.device == "cpu":
        return None
    size = options.link_bytes
    host = [torch.randint(-128, 127, (size,), dtype=torch.int8).pin_memory() for _ in range(2)]
    device = [torch.empty(size, device=options.device, dtype=torch.int8) for _ in range(2)]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]

    def to_device(_):
        with torch.cuda.stream(streams[0]):
            device[0].copy_(host[0], non_blocking=True)

    def to_host(_):
        with torch.cuda.stream(streams[1]):
            host[1].copy_(device[1], non_blocking=True)

    def both(i):
        to_device(i)
        to_host(i)

    rates = {}
    for name, run, moved in [("to_device", to_device, size), ("to_host", to_host, size), ("both", both, 2 * size)]:
        seconds, _ = bench.sustained(run)
        rates[f"{name}_gb_per_second"] = moved / seconds * 1e-9
    return bench.line("link", {"bytes": size, **rates})


def ceilings_file(bench, products, attentions, copied, linked):
    """Convoy's format; the ceiling is the best product, an attention the best kernel's."""
    best = max(products, key=lambda record: record["tflops"])
    result = {
        "version": 1,
        "card": bench.card,
        "date": datetime.date.today().isoformat(),
        "dtype": "bf16",
        "matrix_product_tflops": best["tflops"],
        "copy_gb_per_second": copied["gb_per_second"],
        "power_watts": best["power_watts"],
        "matrix_products": [{key: record[key] for key in ("name", "m", "n", "k", "tflops")} for record in products],
        "attention": [],
    }
    for seq in sorted({record["seq"] for record in attentions}):
        same = [record for record in attentions if record["seq"] == seq]
        entry = {key: same[0][key] for key in ("seq", "heads", "kv_heads", "head_dim")}
        for rate in ("forward_tflops", "backward_tflops"):
            entry[rate] = max(record[rate] for record in same)
        result["attention"].append(entry)
    if linked is not None:
        result["link"] = {key: value for key, value in linked.items() if key.endswith("_gb_per_second")}
    return {key: value for key, value in result.items() if value is not None}


def main():
    options = arguments()
    import torch
    import transformers

    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("PyTorch sees no GPU; --device cpu tries the script without one")
    torch.manual_seed(1)
    config = transformers.AutoConfig.from_pretrained(options.config)
    bench = Bench(options, torch)
    products = matrix_products(bench, config)
    attentions = attention(bench, config)
    copied = copy(bench)
    linked = link(bench)
    if options.out:
        with open(options.out, "w") as out:
            json.dump(ceilings_file(bench, products, attentions, copied, linked), out, indent=2)
            out.write("\n")


if __name__ == "__main__":
    main()
