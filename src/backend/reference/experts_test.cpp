// Routing and experts against cases worked out by hand.
#include "backend/ops/experts.h"

#include "backend/reference/reference_backend.h"
#include "backend/test_inputs.h"
#include "tensor/test_view.h"

namespace hunch {
namespace {

using test::view;

constexpr float kNan = NAN;

struct Routed {
  Ints ids;
  Floats shares;
};

// `how`: all but logits and what comes of them.
Routed route(const Floats& logits, int64_t k, RouteArgs how, int64_t rows = 1) {
  Routed out{Ints(size_t(rows * k), -1), Floats(size_t(rows * k))};
  how.logits = view(logits, rows, std::ssize(logits) / rows);
  how.ids = view(out.ids, rows, k), how.shares = view(out.shares, rows, k);
  ReferenceBackend().route(how);
  return out;
}
Routed route(const Floats& logits, int64_t k, bool normalise, int64_t rows = 1, Routing routing = Routing::Softmax) {
  return route(logits, k, {.routing = routing, .normalise = normalise}, rows);
}

TEST(Route, SharesAreTheSoftmaxOverAllExpertsAscendingById) {
  const float two = std::log(2.0f), four = std::log(4.0f);
  const Routed plain = route({four, 0, two, 0}, 2, false);  // 4, 1, 2, 1 of 8
  EXPECT_EQ(plain.ids, (Ints{0, 2}));
  EXPECT_FLOAT_EQ(plain.shares[0], 0.5f);
  EXPECT_FLOAT_EQ(plain.shares[1], 0.25f);
  const Routed rows = route({0, two, 0, four, four, two, 0, 0}, 2, true, 2);
  EXPECT_EQ(rows.ids, (Ints{1, 3, 0, 1}));
  EXPECT_FLOAT_EQ(rows.shares[0], 1 / 3.0f);
  EXPECT_FLOAT_EQ(rows.shares[1], 2 / 3.0f);
  EXPECT_FLOAT_EQ(rows.shares[2], 2 / 3.0f);
}

TEST(Route, TiesGoToTheLowerIdAndNanRanksLowest) {
  EXPECT_EQ(route({1, 3, 1, 3, 1}, 3, true).ids, (Ints{0, 1, 3}));
  EXPECT_EQ(route({0, 0, 0, 0}, 2, false).ids, (Ints{0, 1}));
  EXPECT_EQ(route({-2, -1, 5}, 3, false).ids, (Ints{0, 1, 2}));
  for (const int32_t id : route({1, kNan, 2, kNan}, 2, true).ids) EXPECT_TRUE(id >= 0 && id < 4);
}

TEST(Route, SharesOfTheChosenAreTheSoftmaxOverThemAlone) {
  const float two = std::log(2.0f), four = std::log(4.0f);
  const Routed chosen = route({four, -two, two, 0}, 2, false, 1, Routing::SoftmaxOfChosen);
  EXPECT_EQ(chosen.ids, (Ints{0, 2}));
  EXPECT_FLOAT_EQ(chosen.shares[0], 2 / 3.0f);
  EXPECT_FLOAT_EQ(chosen.shares[1], 1 / 3.0f);
  EXPECT_EQ(route({1, 3, 1, 3, 1}, 3, false, 1, Routing::SoftmaxOfChosen).ids, (Ints{0, 1, 3}));
  // By logits: their softmax over all would not tell the second from the third.
  EXPECT_EQ(route({0, -300, -200}, 2, false, 1, Routing::SoftmaxOfChosen).ids, (Ints{0, 2}));
  EXPECT_EQ(route({kNan, 1, kNan, 2}, 2, false, 1, Routing::SoftmaxOfChosen).ids, (Ints{1, 3}));
}

struct Groups {
  int groups = 1, kept = 1;
  float scale = 1;
};
Routed route_deepseek(const Floats& logits, const Floats& bias, int64_t k, Groups g, bool normalise = true) {
  return route(logits, k,
      {
          .routing = bias.empty() ? Routing::Softmax : Routing::Sigmoid,
          .normalise = normalise,
          .bias = bias.empty() ? nullptr : bias.data(),
          .groups = g.groups,
          .groups_kept = g.kept,
          .scale = g.scale,
      });
}

TEST(Route, TheBiasChoosesAndTheSigmoidShares) {
  const float three = std::log(3.0f);  // sigmoids 0.75, 0.5, 0.5, 0.25
  const Routed plain = route_deepseek({three, 0, 0, -three}, {0, 0, 0, 0}, 2, {.scale = 2.5f});
  EXPECT_EQ(plain.ids, (Ints{0, 1}));  // the lower of two ties
  EXPECT_FLOAT_EQ(plain.shares[0], 2.5f * 0.6f);
  EXPECT_FLOAT_EQ(plain.shares[1], 2.5f * 0.4f);
  const Routed biased = route_deepseek({three, 0, 0, -three}, {-1, 0, 0, 1}, 2, {}, false);
  EXPECT_EQ(biased.ids, (Ints{1, 3}));
  EXPECT_FLOAT_EQ(biased.shares[0], 0.5f);
  EXPECT_FLOAT_EQ(biased.shares[1], 0.25f);
}

TEST(Route, GroupsAreAsGoodAsTheirTwoBestAndDroppedOnesAreNeverChosen) {
  const float three = std::log(3.0f);
  // Groups of two: 0.75 + 0.25, 0.5 + 0.5 (a tie, the lower stays), 0.75 + 0.5.
  const Floats logits{three, -three, 0, 0, three, 0}, zero(6, 0.0f);
  EXPECT_EQ(route_deepseek(logits, zero, 2, {3, 1}).ids, (Ints{4, 5}));
  EXPECT_EQ(route_deepseek(logits, zero, 4, {3, 2}).ids, (Ints{0, 1, 4, 5}));
  // What is kept may lie below zero: implementations that put zeros in place of dropped experts go wrong here.
  EXPECT_EQ(route_deepseek(logits, {-3, -3, -3, -3, -2, -2}, 2, {3, 1}).ids, (Ints{4, 5}));
  // By softmax a group is as good as its best alone.
  EXPECT_EQ(route_deepseek({5, -9, 4, 4, 0, 0}, {}, 2, {3, 1}, false).ids, (Ints{0, 1}));
  EXPECT_EQ(route_deepseek({kNan, kNan, 0, kNan, -1, -1}, zero, 2, {3, 1}).ids, (Ints{4, 5}));
  for (const int32_t id : route_deepseek({kNan, kNan, kNan, kNan, kNan, kNan}, zero, 2, {3, 1}).ids)
    EXPECT_TRUE(id >= 0 && id < 2);
}

TEST(Experts, AddTheirSharesOfWhatTheirBlocksSay) {
  ReferenceBackend backend;
  std::vector<std::unique_ptr<Weight>> weights;
  const auto matrix = [&](const Floats& values, int64_t rows) {
    return weights.emplace_back(backend.load_weight(test::tensor_of(values, rows))).get();
  };
  // Width 1, hidden 2: gate is x[0], up is x[1], down doubles (expert 0), negates (1) or swaps nothing in (2).
  const Expert experts[] = {
      {matrix({1, 0}, 1), matrix({0, 1}, 1), matrix({2, 0}, 2)},
      {matrix({1, 0}, 1), matrix({0, 1}, 1), matrix({0, -1}, 2)},
      {matrix({1, 0}, 1), matrix({0, 1}, 1), matrix({1, 1}, 2)},
  };
  const float x0 = std::log(3.0f), y = x0 * 0.75f * 4;  // silu(log 3) * 4
  const Floats x{x0, 4, 0, 7};
  const Ints ids{0, 1, 1, 0};
  Floats shares{0.5f, 0.25f, 1, 0}, out{10, 20, 30, 40}, scratch(8);
  const View<float, 2> narrow(scratch.data(), 2, 1), narrow2(scratch.data() + 2, 2, 1), wide(scratch.data() + 4, 2, 2);
  backend.experts({
      .x = view(x, 2, 2),
      .ids = view(ids, 2, 2),
      .shares = view(shares, 2, 2),
      .experts = experts,
      .out = view(out, 2, 2),
      .gate = narrow,
      .up = narrow2,
      .gathered = wide,
      .product = wide,
  });
  EXPECT_FLOAT_EQ(out[0], 10 + 0.5f * 2 * y);
  EXPECT_FLOAT_EQ(out[1], 20 - 0.25f * y);
  EXPECT_FLOAT_EQ(out[2], 30);  // silu(0)
  EXPECT_FLOAT_EQ(out[3], 40);
  EXPECT_EQ(backend.counters().experts_read, 2u);  // the third is left alone
  EXPECT_EQ(backend.counters().weight_bytes, 2 * 6 * sizeof(float));
}

TEST(Experts, ClampGatesAndAddBiasesBeforeTheShare) {
  ReferenceBackend backend;
  const Floats one{1}, half{0.5f};
  const auto unit = backend.load_weight(test::tensor_of(one, 1));
  const Floats gate_bias{0.25f}, up_bias{-1}, down_bias{3};
  const Expert experts[] = {{unit.get(), unit.get(), unit.get(), gate_bias.data(), up_bias.data(), down_bias.data()}};
  constexpr float kLimit = 2, kAlpha = 1.5f;
  for (const float x : {0.5f, 1.75f, 9.0f, -9.0f}) {
    const float g = std::min(x + 0.25f, kLimit), u = std::min(std::max(x - 1, -kLimit), kLimit);
    const float want = 10 + 0.5f * ((u + 1) * g / (1 + std::exp(-kAlpha * g)) + 3);
    const int32_t id = 0;
    float out = 10, scratch[4];
    const auto cell = [](auto* at) { return View<std::remove_pointer_t<decltype(at)>, 2>(at, 1, 1); };
    backend.experts({
        .x = cell(&x),
        .ids = cell(&id),
        .shares = cell(half.data()),
        .experts = experts,
        .clamp = {kLimit, kAlpha},
        .out = cell(&out),
        .gate = cell(scratch),
        .up = cell(scratch + 1),
        .gathered = cell(scratch + 2),
        .product = cell(scratch + 3),
    });
    EXPECT_FLOAT_EQ(out, want) << x;
  }
}

}
}
