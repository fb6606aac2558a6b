// convoy bench [--device cuda] [--output FILE]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/parallel.h"
#include "cli/commands.h"
#include "devices/make_device.h"
#include "measure/measure_ceilings.h"
#include "monitor/nvml.h"

namespace convoy {
namespace {

struct Arguments {
  std::string device = "cpu", output;
  double seconds = 2;
  int threads = 0;
};

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return fmt::format("{:04}-{:02}-{:02}", local.tm_year + 1900, local.tm_mon + 1, local.tm_mday);
}

void print_row(const std::string& what, double value, const char* unit) {
  fmt::print("  {:<52} {:>10} {}\n", what, fmt::format("{:.{}f}", value, value < 10 ? 3 : 1), unit);
  std::fflush(stdout);
}

std::vector<std::unique_ptr<Device>> all_devices(const std::string& name) {
  std::vector<std::unique_ptr<Device>> devices;
  const int count = std::max(1, device_count(name));  // none: making the first says why
  for (int i = 0; i < count; ++i) devices.push_back(make_device(name, {i}));
  return devices;
}

void measure_every_product(Device& device, MeasureOptions options, Ceilings& result) {
  std::unique_ptr<GpuCard> card;
  if (!device.bus_id().empty()) {
    try {
      card = std::make_unique<GpuCard>(device.bus_id());
      options.power = [&card] { return card->sample().power; };
    } catch (const Error& error) {
      log_warning("no power figures: {}", error.message());
    }
  }
  const auto measure = [&](Device& on, DType dtype, const std::string& label) {
    const auto tell = [&](const Ceilings::MatrixProduct& p) {
      print_row(fmt::format("product {} {}, {} x {} x {}", label, p.name, p.m, p.n, p.k), p.tflops, "TFLOP/s");
    };
    std::optional<double> power;
    const auto products = measure_products(on, dtype, label, options, tell, &power);
    if (label == result.dtype) {
      for (const auto& product : products) result.matrix_product = std::max(result.matrix_product, product.tflops);
      result.power = power;
    }
    result.matrix_products.insert(result.matrix_products.end(), products.begin(), products.end());
  };
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32})
    measure(device, dtype, std::string(name_of(dtype)));
  if (device.host_memory()) return;
  const std::unique_ptr<Device> tf32 = make_device("cuda", {0, 1, true, true});
  measure(*tf32, DType::kF32, "tf32");
}

int bench(const Arguments& arguments) {
  set_threads(arguments.threads);
  const std::vector<std::unique_ptr<Device>> devices = all_devices(arguments.device);
  Device& device = *devices[0];
  Ceilings result;
  result.card = device.card();
  result.date = today();
  result.dtype = "bf16";
  const std::filesystem::path file =
      arguments.output.empty() ? ceilings_path(result.card) : std::filesystem::path(arguments.output);
  if (file.empty())
    throw usage_error("there is no folder to keep the measurements in").mend("give --output FILE, or set HOME");
  if (file.has_parent_path()) {
    std::error_code failed;
    std::filesystem::create_directories(file.parent_path(), failed);
    if (failed) {
      throw storage_error(fmt::format("cannot create the folder {}: {}", file.parent_path().string(), failed.message()))
          .mend("give --output, a file in a folder that can be written to");
    }
  }
  MeasureOptions options = usual_sizes(device);
  options.seconds = arguments.seconds;
  fmt::print("{}, {} s each\n", result.card, arguments.seconds);
  measure_every_product(device, options, result);
  result.copy = measure_copy(device, options);
  print_row("copy within memory, read and written", *result.copy, "GB/s");
  if (!device.host_memory()) {
    result.attention = measure_attention(device, DType::kBF16, options, [](const Ceilings::Attention& at) {
      const std::string shape = fmt::format("{} tokens, {}/{} heads of {}", at.seq, at.heads, at.kv_heads, at.head_dim);
      print_row("attention forward, " + shape, at.forward_tflops, "TFLOP/s");
      print_row("attention backward, " + shape, at.backward_tflops, "TFLOP/s");
    });
    result.link = measure_link(device, options);
    print_row("host to device", result.link->to_device, "GB/s");
    print_row("device to host", result.link->to_host, "GB/s");
    print_row("both at once, together", result.link->both.value_or(0), "GB/s");
    result.peer_links = measure_peers(devices, options, [](const Ceilings::PeerLink& link) {
      print_row(fmt::format("device {} to {}", link.from, link.to), link.rate, "GB/s");
      print_row(fmt::format("device {} and {}, both ways together", link.from, link.to), link.both.value_or(0), "GB/s");
    });
  }
  write_file_atomic(file, ceilings_text(result));
  fmt::print(
      "written to {}{}\n", file.string(),
      arguments.output.empty() ? "; runs on this device find it by themselves" : "; runs read it with --ceilings_file");
  return 0;
}

}  // namespace

int bench_command(const Words& words) {
  Arguments arguments;
  CLI::App app(
      "measure what this machine does at best: matrix products, copies, attention, links. Runs then log the share of "
      "it "
      "that they reach (ceilings_file). Nothing else should run meanwhile.",
      "bench");
  app.add_option("--device", arguments.device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("-o,--output", arguments.output, "the file to write (default: where runs look for it)");
  app.add_option("--seconds", arguments.seconds, "how long each measurement runs; a card needs two to be warm")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  app.add_option("--threads", arguments.threads, "threads (0 = all cores)")->check(CLI::Range(0, 4096));
  if (!parse_words(app, words)) return 0;
  return bench(arguments);
}

}  // namespace convoy
