// The header reader on malformed input, by a table of what is wrong and which words the message must hold; tensor names.
#include "checkpoint/safetensors.h"

#include <chrono>

#include "checkpoint/test_configs.h"

namespace hunch {
namespace {

using namespace test;
using namespace tiny;

std::string parse_error(const Bytes& file) { return error_of(parse_safetensors(file, "w.safetensors")); }

// The header of one tensor.
std::string f32(std::string_view shape, std::string_view offsets) {
  return fmt::format(R"({{"a":{{"dtype":"F32","shape":[{}],"data_offsets":[{}]}}}})", shape, offsets);
}

struct BadHeader {
  const char* name;
  std::string header;
  size_t data_bytes;
  const char* expected;  // part of the message
};

TEST(Safetensors, RefusesEveryMalformedHeaderAndSaysWhy) {
  const std::string good = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const BadHeader cases[] = {
      {"not an object", "[1]", 0, "begin with '{'"},
      {"cut JSON", "{\"a\":", 0, "not valid JSON"},
      {"not UTF-8", "{\"a\xff\":{}}", 0, "not valid JSON"},
      {"duplicate key", "{" + good + "," + good + "}", 8, "duplicate key in the header: a"},
      {"entry is a number", R"({"a":3})", 0, "tensor a: its header entry is not an object"},
      {"unknown type", R"({"a":{"dtype":"F8_E5M2","shape":[2],"data_offsets":[0,2]}})", 2,
          "tensor a: type F8_E5M2 is not supported"},
      {"negative extent", f32("-2", "0,8"), 8, "tensor a: shape"},
      {"fractional extent", f32("2.0", "0,8"), 8, "tensor a: shape"},
      {"extent product overflows", f32("4294967296,4294967296", "0,8"), 8, "overflows"},
      {"bytes overflow", f32("4611686018427387904", "0,0"), 0, "overflows"},
      {"begin after end", f32("2", "8,0"), 8, "ends before it"},
      {"past the end", f32("2", "0,8"), 4, "past the end of the file"},
      {"shape and bytes differ", f32("3", "0,8"), 8, "shape needs 12 bytes"},
      {"three offsets", f32("2", "0,8,9"), 8, "pair"},
      {"no dtype", R"({"a":{"shape":[2],"data_offsets":[0,8]}})", 8, "once each"},
      {"two shapes", R"({"a":{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]}})", 8, "once each"},
      {"unknown field", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", 8, "unknown key x"},
      {"hole", "{" + good + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})", 16, "tensor b: leaves a hole"},
      {"hole at the start", R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "tensor b: leaves a hole"},
      {"overlap", "{" + good + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "tensor b: overlaps"},
      {"trailing bytes", "{" + good + "}", 9, "1 bytes after the last tensor"},
      {"metadata is a list", R"({"__metadata__":[]})", 0, "__metadata__"},
  };
  for (const BadHeader& bad : cases) {
    const auto message = parse_error(safetensors(bad.header, bad.data_bytes));
    EXPECT_TRUE(message.find(bad.expected) != message.npos) << bad.name << ": " << message;
    EXPECT_TRUE(message.starts_with("w.safetensors: ") || message == "accepted") << message;
  }
}

TEST(Safetensors, RefusesHeaderLengthsThatTheFileCannotHold) {
  Bytes file = safetensors("{}", 0);
  EXPECT_EQ(parse_error(file), "accepted");
  for (const uint64_t length : {uint64_t(3), uint64_t(1) << 20, kMostSafetensorsHeader + 1, uint64_t(1) << 63, ~uint64_t(0)}) {
    std::memcpy(file.data(), &length, 8);
    expect_part(parse_error(file), length > kMostSafetensorsHeader ? "at most" : "truncated");
  }
  expect_part(parse_error(Bytes(5)), "5 bytes");
}

TEST(Safetensors, RefusesEveryTruncation) {
  const Bytes whole = safetensors(folder_tensors("qwen3"));
  ASSERT_EQ(parse_error(whole), "accepted");
  for (size_t part = 0; part < 64; ++part) {
    const Bytes cut(whole.begin(), whole.begin() + whole.size() * part / 64);
    EXPECT_NE(parse_error(cut), "accepted") << part;
  }
}

TEST(Safetensors, ReadsAHundredThousandEntriesQuickly) {
  std::string header = "{";
  for (int i = 0; i < 100000; ++i)
    header += fmt::format(R"({}"t{}":{{"dtype":"F32","shape":[1],"data_offsets":[{},{}]}})", i ? "," : "", i, 4 * i, 4 * i + 4);
  const Bytes file = safetensors(header + "}", 400000);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(parse_error(file), "accepted");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));  // generous: sanitizers; release takes 50 ms
}

TEST(Safetensors, MapsHuggingFaceNamesToCanonicalOnes) {
  const std::pair<const char*, const char*> names[] = {{"model.embed_tokens.weight", "token_embd.weight"},
      {"model.norm.weight", "output_norm.weight"}, {"lm_head.weight", "output.weight"},
      {"model.layers.3.self_attn.q_proj.weight", "blk.3.attn_q.weight"},
      {"model.layers.12.self_attn.k_proj.bias", "blk.12.attn_k.bias"},
      {"model.layers.0.self_attn.q_norm.weight", "blk.0.attn_q_norm.weight"},
      {"model.layers.0.self_attn.o_proj.weight", "blk.0.attn_output.weight"},
      {"model.layers.0.mlp.gate_proj.weight", "blk.0.ffn_gate.weight"},
      {"model.layers.0.mlp.gate.weight", "blk.0.ffn_gate_inp.weight"},
      {"model.layers.2.mlp.experts.127.down_proj.weight", "blk.2.ffn_down.127.weight"},
      {"model.layers.2.mlp.experts.gate_up_proj", "blk.2.ffn_gate_up_exps.weight"},
      {"model.layers.2.mlp.experts.down_proj", "blk.2.ffn_down_exps.weight"},
      {"model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight"},
      {"model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight"},
      {"model.layers.0.self_attn.rotary_emb.inv_freq", ""}};
  for (const auto& [hf, canonical] : names) EXPECT_EQ(good(canonical_name(hf)), canonical) << hf;
}

TEST(Safetensors, RefusesUnknownNamesByName) {
  for (const char* name :
      {"model.layers.0.mlp.experts.0.w1.weight", "model.layers.0.mlp.experts.x.up_proj.weight", "model.experts.gate_up_proj",
          "model.layers.0.mlp.experts.-1.up_proj.weight", "model.layers.0.mlp.experts.0up_proj.weight",
          "model.layers.x.mlp.up_proj.weight", "model.layers.-1.mlp.up_proj.weight",
          "model.layers.99999999999.mlp.up_proj.weight", "model.layers.0", "weight", "model.layers.0.mlp.up_proj.scale"})
    expect_error(canonical_name(name), name);
}

TEST(Safetensors, EscapesControlBytesInMessages) {
  expect_part(parse_error(safetensors("{\"a\\u001b[31m\":3}", 0)), "a\\x1b[31m");
}

TEST(Safetensors, OpensWithTensorsThatTheFileLeavesUnaligned) {
  const auto tensors = folder_tensors("llama");
  const Bytes aligned = safetensors(tensors);
  uint64_t length;
  std::memcpy(&length, aligned.data(), 8);
  Bytes odd = aligned;  // one more blank in the header moves the data by a byte
  odd.insert(odd.begin() + 8 + length, std::byte(' '));
  ++length;
  std::memcpy(odd.data(), &length, 8);
  const auto checkpoint = good(opened(odd, config("llama")));
  for (const Tensor& tensor : checkpoint->tensors()) EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data) % 4, 0u);
  EXPECT_EQ(std::memcmp(checkpoint->find("token_embd.weight")->data, values(kVocab * kHidden, 1).data(), 64), 0);
}

}
}
