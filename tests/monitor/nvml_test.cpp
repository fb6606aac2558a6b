#include "monitor/nvml.h"

#include "fake_nvml_support.h"
#include "monitor_support.h"

namespace convoy {
namespace {

using Words = std::vector<std::string>;

TEST(Nvml, ThrottleReasonsInWords) {
  EXPECT_EQ(throttle_words(0), Words{});
  EXPECT_EQ(throttle_words(0x1), Words{});  // idle
  EXPECT_EQ(throttle_words(0x4), Words{"power cap"});
  EXPECT_EQ(throttle_words(0x20), Words{"thermal"});
  EXPECT_EQ(throttle_words(0x40 | 0x8), Words{"thermal"});
  EXPECT_EQ(throttle_words(0x80 | 0x8), Words{"power brake"});
  EXPECT_EQ(throttle_words(0x8), Words{"hardware slowdown"});
  EXPECT_EQ(throttle_words(0x4 | 0x60 | 0x2 | 0x10), (Words{"power cap", "thermal", "clock setting", "sync boost"}));
  EXPECT_EQ(throttle_words(0x100), Words{"clock setting"});
}

TEST(Nvml, ReadsEveryField) {
  FakeLibrary fake(CONVOY_FAKE_NVML);
  {
    GpuCard card(kFakeBusId, fake.path());
    EXPECT_EQ(card.name(), "Fake card");
    const GpuSample sample = card.sample();
    EXPECT_EQ(sample.utilization, 0.93);
    EXPECT_EQ(sample.memory_utilization, 0.41);
    EXPECT_EQ(sample.memory_used, 250.0 * (1 << 20));
    EXPECT_EQ(sample.memory_total, 1000.0 * (1 << 20));
    EXPECT_EQ(sample.power, 412.5);
    EXPECT_EQ(sample.power_limit, 700.0);
    EXPECT_EQ(sample.sm_clock, 1980.0);
    EXPECT_EQ(sample.memory_clock, 3201.0);
    EXPECT_EQ(sample.temperature, 64.0);
    EXPECT_EQ(sample.throttle_reasons, 0x4u);
    EXPECT_EQ(card.take_failures(), Words{});
    EXPECT_FALSE(card.lost());
    EXPECT_EQ(fake->inits, 1);
    EXPECT_EQ(fake->shutdowns, 0);
  }
  EXPECT_EQ(fake->shutdowns, 1);
}

TEST(Nvml, ByIndex) {
  FakeLibrary fake(CONVOY_FAKE_NVML);
  EXPECT_EQ(GpuCard("0", fake.path()).sample().power, 412.5);
  EXPECT_NE(message_of(Status::kUsage, [&] { GpuCard("3", fake.path()); }).find("NVML has no card '3'"),
            std::string::npos);
}

TEST(Nvml, EachFieldMayBeUnsupportedAlone) {
  FakeLibrary fake(CONVOY_FAKE_NVML);
  const auto present = [](const GpuSample& s) {
    return std::vector<bool>{s.utilization.has_value(), s.memory_used.has_value(),     s.power.has_value(),
                             s.power_limit.has_value(), s.sm_clock.has_value(),        s.memory_clock.has_value(),
                             s.temperature.has_value(), s.throttle_reasons.has_value()};
  };
  const std::vector<FakeField> fields = {FakeField::kUtilization, FakeField::kMemory,  FakeField::kPower,
                                         FakeField::kPowerLimit,  FakeField::kSmClock, FakeField::kMemoryClock,
                                         FakeField::kTemperature, FakeField::kThrottle};
  GpuCard card(kFakeBusId, fake.path());
  for (std::size_t i = 0; i < fields.size(); ++i) {
    fake->code(fields[i]) = 3;
    std::vector<bool> expected(fields.size(), true);
    expected[i] = false;
    EXPECT_EQ(present(card.sample()), expected) << i;
    fake->code(fields[i]) = 0;
  }
  EXPECT_EQ(card.take_failures(), Words{});  // what a card does not have is no failure
}

TEST(Nvml, AFailureIsToldOnce) {
  FakeLibrary fake(CONVOY_FAKE_NVML);
  GpuCard card(kFakeBusId, fake.path());
  fake->code(FakeField::kPower) = 4;
  EXPECT_EQ(card.sample().power, std::nullopt);
  EXPECT_EQ(card.sample().temperature, 64.0);
  EXPECT_EQ(card.take_failures(), Words{"power: Insufficient Permissions (error 4)"});
  card.sample();
  EXPECT_EQ(card.take_failures(), Words{});
  fake->code(FakeField::kPower) = 0;
  EXPECT_EQ(card.sample().power, 412.5);
  EXPECT_FALSE(card.lost());
}

TEST(Nvml, ALostCardIsAskedNoMore) {
  FakeLibrary fake(CONVOY_FAKE_NVML);
  GpuCard card(kFakeBusId, fake.path());
  for (auto& code : fake->codes) code = 15;
  const GpuSample sample = card.sample();
  EXPECT_TRUE(card.lost());
  EXPECT_EQ(sample.utilization, std::nullopt);
  EXPECT_EQ(sample.throttle_reasons, std::nullopt);
  EXPECT_EQ(fake->questions, 1);
  EXPECT_EQ(card.take_failures(), Words{"utilization: Some Failure (error 15)"});
}

TEST(Nvml, AnOlderLibraryGivesWhatItHas) {
  FakeLibrary fake(CONVOY_FAKE_NVML_PARTIAL);
  GpuCard card(kFakeBusId, fake.path());
  const GpuSample sample = card.sample();
  EXPECT_EQ(sample.power, 412.5);
  EXPECT_EQ(sample.power_limit, std::nullopt);
  EXPECT_EQ(sample.temperature, std::nullopt);
  EXPECT_EQ(sample.throttle_reasons, 0x4u);  // under its older name
  fake->code(FakeField::kSmClock) = 999;
  card.sample();
  EXPECT_EQ(card.take_failures(), Words{"SM clock: error 999"});
}

TEST(Nvml, WithoutANameIsNoFailure) {
  FakeLibrary fake(CONVOY_FAKE_NVML);
  fake->code(FakeField::kName) = 3;
  EXPECT_EQ(GpuCard(kFakeBusId, fake.path()).name(), "");
}

TEST(Nvml, Refusals) {
  const std::string missing = message_of(Status::kUsage, [] { GpuCard("0", "/no/such/libnvidia-ml.so"); });
  EXPECT_NE(missing.find("cannot open NVML"), std::string::npos) << missing;
  EXPECT_NE(missing.find("install NVIDIA's driver"), std::string::npos) << missing;

  const FakeLibrary ancient(CONVOY_FAKE_NVML_ANCIENT);
  const std::string old = message_of(Status::kUsage, [&] { GpuCard("0", ancient.path()); });
  EXPECT_NE(old.find("this NVML has no nvmlInit_v2"), std::string::npos) << old;
  EXPECT_NE(old.find(ancient.path()), std::string::npos) << old;

  FakeLibrary fake(CONVOY_FAKE_NVML);
  fake->code(FakeField::kInit) = 9;
  const std::string start = message_of(Status::kUsage, [&] { GpuCard("0", fake.path()); });
  EXPECT_NE(start.find("NVML does not start: Some Failure (error 9)"), std::string::npos) << start;
  EXPECT_EQ(fake->shutdowns, 0);
  fake->code(FakeField::kInit) = 0;

  const std::string other = message_of(Status::kUsage, [&] { GpuCard("0000:99:00.0", fake.path()); });
  EXPECT_NE(other.find("NVML has no card '0000:99:00.0': Some Failure (error 6); it knows 1 card"), std::string::npos)
      << other;
  EXPECT_EQ(fake->inits, 1);
  EXPECT_EQ(fake->shutdowns, 1);
}

}  // namespace
}  // namespace convoy
