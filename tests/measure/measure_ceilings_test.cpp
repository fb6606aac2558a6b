#include "measure/measure_ceilings.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/test_device.h"

namespace convoy {
namespace {

// How fast is no question here: every figure is there, is a number above 0, and is of the shape that was asked for.
MeasureOptions tiny() {
  MeasureOptions options;
  options.seconds = 0.001;
  options.layers = {{16, 32, 48, true}, {8, 8, 8, false}};
  options.attention = {{2, 32, 4, 2, 16}};
  options.copy_bytes = 3 << 20;
  options.link_bytes = 1 << 16;
  return options;
}

bool is_rate(double value) {
  return std::isfinite(value) && value > 0;
}

TEST(MeasureCeilings, ProductsOfEveryDtype) {
  const std::unique_ptr<Device> device = testing::test_device();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    int told = 0;
    std::optional<double> power;
    MeasureOptions options = tiny();
    options.power = [] { return 250.0; };
    const auto products = measure_products(
        *device, dtype, "label", options, [&](const Ceilings::MatrixProduct&) { ++told; }, &power);
    ASSERT_EQ(products.size(), 4U);
    EXPECT_EQ(told, 4);
    EXPECT_EQ(power, 250.0);
    const std::int64_t shapes[][3] = {{16, 48, 32}, {16, 32, 48}, {48, 32, 16}, {8, 8, 8}};
    const char* names[] = {"forward", "input gradient", "weight gradient", "forward"};
    for (std::size_t i = 0; i < products.size(); ++i) {
      EXPECT_EQ(products[i].name, names[i]);
      EXPECT_EQ(products[i].dtype, "label");
      EXPECT_EQ(products[i].m, shapes[i][0]);
      EXPECT_EQ(products[i].n, shapes[i][1]);
      EXPECT_EQ(products[i].k, shapes[i][2]);
      EXPECT_TRUE(is_rate(products[i].tflops));
    }
  }
}

TEST(MeasureCeilings, AttentionCopyAndLink) {
  const std::unique_ptr<Device> device = testing::test_device();
  const std::size_t before = device->memory().current;
  const auto attention = measure_attention(*device, DType::kBF16, tiny());
  ASSERT_EQ(attention.size(), 1U);
  EXPECT_EQ(attention[0].seq, 32);
  EXPECT_EQ(attention[0].heads, 4);
  EXPECT_EQ(attention[0].kv_heads, 2);
  EXPECT_EQ(attention[0].head_dim, 16);
  EXPECT_TRUE(is_rate(attention[0].forward_tflops));
  EXPECT_TRUE(is_rate(attention[0].backward_tflops));
  EXPECT_TRUE(is_rate(measure_copy(*device, tiny())));
  const Ceilings::Link link = measure_link(*device, tiny());
  EXPECT_TRUE(is_rate(link.to_device));
  EXPECT_TRUE(is_rate(link.to_host));
  EXPECT_TRUE(is_rate(link.both.value_or(0)));
  EXPECT_EQ(device->memory().current, before);  // everything is given back
}

TEST(MeasureCeilings, DevicesWithoutALinkHaveNone) {
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(testing::test_device());
  EXPECT_TRUE(measure_peers(devices, tiny()).empty());
  devices.push_back(testing::test_device());
  EXPECT_TRUE(measure_peers(devices, tiny()).empty());
}

TEST(MeasureCeilings, CopiesArriveWhole) {
  const std::unique_ptr<Device> device = testing::test_device();
  const std::size_t bytes = (std::size_t{5} << 20) + 123;
  const auto host = device->allocate_host(2 * bytes);
  for (std::size_t i = 0; i < bytes; ++i) host->data()[i] = static_cast<std::byte>(i * 2654435761U >> 11);
  const auto memory = device->allocate(2 * bytes);
  device->start_copy_in(memory->data(), {host->data(), bytes}, Lane::kWork);
  device->start_copy(memory->data() + bytes, memory->data(), bytes);
  device->start_copy_out({host->data() + bytes, bytes}, memory->data() + bytes, Lane::kWork);
  device->synchronize();
  EXPECT_TRUE(std::equal(host->data(), host->data() + bytes, host->data() + bytes));
}

}  // namespace
}  // namespace convoy
