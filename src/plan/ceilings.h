// What a card was measured to do at best (docs/benchmarks.md has the file's format): logs and plans compare with it,
// rather than with a data sheet.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

struct Ceilings {
  // y[m, n] = a[m, k] · b[k, n], or its transposed forms, on random data for seconds on end.
  struct MatrixProduct {
    std::string name;  // what it is in the model: "qkv forward"; may be empty
    std::int64_t m = 0, n = 0, k = 0;
    double tflops = 0;
    std::string dtype;  // bf16, f16, f32, tf32; empty: the file's
  };
  // Causal attention; FLOPs as the operations count them (half the square; the backward pass 2.5 times the forward
  // one).
  struct Attention {
    std::int64_t seq = 0, heads = 0, kv_heads = 0, head_dim = 0;
    double forward_tflops = 0, backward_tflops = 0;
  };
  // Between pinned host memory and the card, 10⁹ bytes a second. `both`: the two ways at once, together.
  struct Link {
    double to_device = 0, to_host = 0;
    std::optional<double> both;
  };
  // Between two cards of the host, by their numbers, 10⁹ bytes a second.
  struct PeerLink {
    std::int64_t from = 0, to = 0;
    double rate = 0;
    std::optional<double> both;
  };

  std::string card;                            // as the driver names it
  std::string date;                            // of the measurement, YYYY-MM-DD
  std::string dtype;                           // of the products: bf16
  double matrix_product = 0;                   // TFLOP/s, the ceiling that shares are of
  std::optional<double> copy;                  // 10⁹ bytes a second on the device, read and written bytes together
  std::vector<MatrixProduct> matrix_products;  // by shape
  std::vector<Attention> attention;
  std::optional<Link> link;
  std::vector<PeerLink> peer_links;
  std::optional<double> power;  // watts during the products

  // TFLOP/s of the best product of a dtype; matrix_product where none of it was measured.
  double best_product(std::string_view of) const;
};

// Errors are usage errors that name the file, the key and how to mend it; an unknown key is one.
Ceilings parse_ceilings(const std::string& text, const std::string& name);
Ceilings read_ceilings(const std::filesystem::path& file);
// The text of a file that reads back equal.
std::string ceilings_text(const Ceilings& ceilings);
// Where `convoy bench` keeps a card's ceilings and runs look for them (see base/cache_folder.h); empty: nowhere.
std::filesystem::path ceilings_path(const std::string& card);

}  // namespace convoy
