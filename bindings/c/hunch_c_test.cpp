// The C interface: a stream is that of the C++ interface, and whatever a caller gets wrong is answered by a status.
#include "hunch/hunch_c.h"

#include "engine/test_engines.h"

namespace hunch {
namespace {

using namespace test;

const std::string& model() {
  static const std::string path = tiny_path("llama");
  return path;
}

hunch_engine_options tiny_options() {
  hunch_engine_options options;
  hunch_engine_options_init(&options);
  options.model = model().c_str();
  options.threads = 1;
  options.context_len = 512;
  return options;
}

template <class S>
S sized() {
  S made{};
  made.size = sizeof made;
  return made;
}

class LoadedTest : public testing::Test {
 protected:
  void load_engine(const std::string& path) {
    hunch_engine_options options = tiny_options();
    options.model = path.c_str();
    ASSERT_EQ(hunch_engine_load(&options, &engine_, &error_), HUNCH_STATUS_OK) << error_.message;
  }
  void TearDown() override { EXPECT_EQ(hunch_engine_free(engine_, &error_), HUNCH_STATUS_OK) << error_.message; }

  hunch_engine* engine_ = nullptr;
  hunch_error error_;
};

class CInterface : public LoadedTest {
 protected:
  void SetUp() override {
    load_engine(model());
    hunch_request_init(&request_);
    request_.prompt = prompt_.data(), request_.prompt_len = prompt_.size();
    request_.max_tokens = 20, request_.ignore_eos = 1;
    request_.temperature = 1, request_.top_p = 1, request_.min_p = 0, request_.top_k = 0;
    request_.has_seed = 1, request_.seed = 5;
    fine_ = request_;
  }
  hunch_stream* submit() {
    hunch_stream* stream = nullptr;
    EXPECT_EQ(hunch_submit(engine_, &request_, &stream, &error_), HUNCH_STATUS_OK) << error_.message;
    return stream;
  }
  // What was changed is as it was afterwards.
  void refused(const char* message) {
    hunch_stream* stream = reinterpret_cast<hunch_stream*>(this);
    EXPECT_EQ(hunch_submit(engine_, &request_, &stream, &error_), HUNCH_STATUS_USAGE);
    expect_part(error_.message, message);
    EXPECT_EQ(stream, nullptr);
    request_ = fine_;
  }

  Ints prompt_ = random_prompt(50, 256, 3);
  hunch_request request_, fine_;
};

TEST_F(CInterface, StreamsTheTokensOfTheCxxInterface) {
  auto engine = load({.model = model(), .threads = 1, .context_len = 512});
  Request same = ask(prompt_, 20);
  same.sampling.temperature = 1, same.sampling.seed = 5;
  const auto plain = plain_stream(*engine, same);

  hunch_stream* stream = submit();
  Ints taken;
  auto token = sized<hunch_token>();
  hunch_status status;
  while ((status = hunch_stream_next(stream, taken.size() % 2 ? -1 : 1000, &token, &error_)) == HUNCH_STATUS_OK) {
    EXPECT_EQ(token.index, std::ssize(taken));
    EXPECT_EQ(std::strlen(token.text), token.text_len);
    taken.push_back(token.id);
  }
  EXPECT_EQ(status, HUNCH_STATUS_END);
  EXPECT_EQ(taken, plain);
  auto result = sized<hunch_result>();
  for (int again = 0; again < 2; ++again) {
    ASSERT_EQ(hunch_stream_result(stream, &result, &error_), HUNCH_STATUS_OK) << error_.message;
    EXPECT_EQ(Ints(result.tokens, result.tokens + result.num_tokens), plain);
    EXPECT_EQ(result.finish, HUNCH_FINISH_LENGTH);
    EXPECT_EQ(result.seed, 5u);
    EXPECT_EQ(result.prompt_tokens, 50);
  }
  hunch_stream_free(stream);
}

TEST_F(CInterface, CancelsAndTimesOut) {
  request_.max_tokens = 400;
  hunch_stream* stream = submit();
  auto token = sized<hunch_token>();
  hunch_token unsized{};
  EXPECT_EQ(hunch_stream_next(stream, -1, &unsized, &error_), HUNCH_STATUS_USAGE);
  ASSERT_EQ(hunch_stream_next(stream, -1, &token, &error_), HUNCH_STATUS_OK);
  EXPECT_EQ(token.index, 0) << "a call that is refused takes nothing";
  EXPECT_EQ(hunch_stream_cancel(stream, &error_), HUNCH_STATUS_OK);
  auto result = sized<hunch_result>();
  ASSERT_EQ(hunch_stream_result(stream, &result, &error_), HUNCH_STATUS_OK);
  EXPECT_EQ(result.finish, HUNCH_FINISH_INTERRUPTED);
  EXPECT_EQ(hunch_stream_next(stream, 0, &token, &error_), HUNCH_STATUS_END);
  hunch_stream_free(stream);
  auto stats = sized<hunch_engine_stats>();
  ASSERT_EQ(hunch_engine_get_stats(engine_, &stats, nullptr), HUNCH_STATUS_OK);
  EXPECT_EQ(stats.requests_aborted, 1);
  EXPECT_EQ(stats.kv_pages_used, 0);
}

TEST_F(CInterface, AnswersNullPointersWithAStatus) {
  hunch_stream* stream = nullptr;
  hunch_token token{};
  hunch_result result{};
  size_t count = 0;
  const hunch_engine_options options = tiny_options();
  hunch_engine* other = nullptr;
  EXPECT_EQ(hunch_engine_load(nullptr, &other, nullptr), HUNCH_STATUS_USAGE);
  EXPECT_EQ(other, nullptr);
  EXPECT_EQ(hunch_engine_load(&options, nullptr, &error_), HUNCH_STATUS_USAGE);
  EXPECT_NE(error_.message[0], 0);
  const hunch_status said[] = {hunch_submit(nullptr, &request_, &stream, &error_),
      hunch_submit(engine_, nullptr, &stream, &error_), hunch_submit(engine_, &request_, nullptr, &error_),
      hunch_stream_next(nullptr, 0, &token, &error_), hunch_stream_result(nullptr, &result, &error_),
      hunch_stream_cancel(nullptr, &error_), hunch_engine_get_stats(engine_, nullptr, &error_),
      hunch_tokenize(engine_, nullptr, 3, 1, 1, nullptr, 0, &count, &error_),
      hunch_detokenize(nullptr, nullptr, 0, nullptr, 0, &count, &error_)};
  for (size_t i = 0; i < std::size(said); ++i) EXPECT_EQ(said[i], HUNCH_STATUS_USAGE) << i;
  EXPECT_EQ(hunch_engine_context_len(nullptr), 0);
  hunch_engine_options_init(nullptr);
  hunch_request_init(nullptr);
  hunch_stream_free(nullptr);
  EXPECT_EQ(hunch_engine_free(nullptr, nullptr), HUNCH_STATUS_OK);
}

TEST_F(CInterface, AnswersBadOptionsWithAStatusAndWords) {
  hunch_engine* other = nullptr;
  hunch_engine_options options = tiny_options();
  for (const size_t size : {0, 12}) {
    options.size = size;
    EXPECT_EQ(hunch_engine_load(&options, &other, &error_), HUNCH_STATUS_USAGE);
  }
  expect_part(error_.message, "size");
  options = tiny_options(), options.model = "/no/such/model";
  EXPECT_EQ(hunch_engine_load(&options, &other, &error_), HUNCH_STATUS_FAILURE);
  expect_part(error_.message, "/no/such/model");
  options = tiny_options(), options.max_num_seqs = -1;
  EXPECT_EQ(hunch_engine_load(&options, &other, &error_), HUNCH_STATUS_USAGE) << error_.message;
  EXPECT_EQ(other, nullptr);

  request_.size = 3, refused("size");
  request_.prompt = nullptr, refused("prompt is NULL");
  request_.prompt_len = 0, refused("empty");
  request_.temperature = std::nan(""), refused("temperature");
  request_.drafter = "oracle", refused("oracle");
  request_.num_stop = 1, refused("stop is NULL");
  request_.max_tokens = 0, refused("max tokens");
  request_.structure = 6, refused("hunch_structure");
  request_.structure = HUNCH_STRUCTURE_REGEX, refused("structure_text is NULL");
  request_.structure = HUNCH_STRUCTURE_CHOICE, refused("choices");

  hunch_token token{};  // its size is not set
  hunch_stream* stream = submit();
  EXPECT_EQ(hunch_stream_next(stream, -1, &token, &error_), HUNCH_STATUS_USAGE);
  token.size = sizeof token;
  EXPECT_EQ(hunch_stream_next(stream, std::nan(""), &token, &error_), HUNCH_STATUS_USAGE);
  hunch_stream_free(stream);
}

TEST_F(CInterface, KeepsTheEngineWhileAStreamLives) {
  hunch_stream* stream = submit();
  EXPECT_EQ(hunch_engine_free(engine_, &error_), HUNCH_STATUS_USAGE);
  expect_part(error_.message, "streams");
  hunch_stream_free(stream);
}

TEST_F(CInterface, ReadsWhatAnOlderHeaderKnewAndWritesNoMore) {
  // A caller from before the fields behind `max_tokens`.
  hunch_request old = request_;
  old.size = offsetof(hunch_request, stop_ids);
  old.num_stop_ids = 99;  // not read
  hunch_stream* stream = nullptr;
  ASSERT_EQ(hunch_submit(engine_, &old, &stream, &error_), HUNCH_STATUS_OK) << error_.message;
  hunch_result result;
  std::memset(&result, 0x55, sizeof result);
  result.size = offsetof(hunch_result, seed);
  ASSERT_EQ(hunch_stream_result(stream, &result, &error_), HUNCH_STATUS_OK);
  EXPECT_EQ(result.num_tokens, 20u);
  EXPECT_EQ(result.seed, 0x5555555555555555u);
  hunch_stream_free(stream);
}

// The shipped model, which says something.
class CInterfaceText : public LoadedTest {
 protected:
  void SetUp() override { load_engine(wren_path()); }
};

TEST_F(CInterfaceText, TokenizesBothWaysAndSaysHowMuchRoomItTakes) {
  const std::string text = "The captain looked at the sea.";
  size_t count = 0, length = 0;
  EXPECT_EQ(hunch_tokenize(engine_, text.data(), text.size(), 1, 1, nullptr, 0, &count, &error_), HUNCH_STATUS_TOO_SMALL);
  Ints ids(count);
  ASSERT_EQ(hunch_tokenize(engine_, text.data(), text.size(), 1, 1, ids.data(), ids.size(), &count, &error_), HUNCH_STATUS_OK);
  EXPECT_EQ(hunch_detokenize(engine_, ids.data(), ids.size(), nullptr, 0, &length, &error_), HUNCH_STATUS_TOO_SMALL);
  std::string back(length, ' ');
  ASSERT_EQ(hunch_detokenize(engine_, ids.data(), ids.size(), back.data(), back.size(), &length, &error_), HUNCH_STATUS_OK);
  EXPECT_EQ(back, text);
  EXPECT_EQ(hunch_tokenize(engine_, "\xff", 1, 1, 1, ids.data(), ids.size(), &count, &error_), HUNCH_STATUS_USAGE)
      << error_.message;
}

// Every kind of structure: what comes is what was asked for.
TEST_F(CInterfaceText, KeepsTheStructureThatWasAskedFor) {
  if (!grammars_available()) GTEST_SKIP() << "built without xgrammar";
  const int32_t prompt[] = {5, 6, 7};
  const char* const choices[] = {"the sea", "a ship"};
  const auto said = [&](hunch_structure structure, const char* text) {
    hunch_request request;
    hunch_request_init(&request);
    request.prompt = prompt, request.prompt_len = 3, request.max_tokens = 40, request.temperature = 0;
    request.structure = structure, request.structure_text = text;
    request.choices = choices, request.num_choices = 2;
    hunch_stream* stream = nullptr;
    EXPECT_EQ(hunch_submit(engine_, &request, &stream, &error_), HUNCH_STATUS_OK) << error_.message;
    auto result = sized<hunch_result>();
    EXPECT_EQ(hunch_stream_result(stream, &result, &error_), HUNCH_STATUS_OK) << error_.message;
    const std::string out(result.text, result.text_len);
    hunch_stream_free(stream);
    return out;
  };
  EXPECT_EQ(said(HUNCH_STRUCTURE_JSON_OBJECT, nullptr).substr(0, 1), "{");
  EXPECT_EQ(said(HUNCH_STRUCTURE_JSON_SCHEMA, R"({"const":"yes"})"), "\"yes\"");
  EXPECT_EQ(said(HUNCH_STRUCTURE_REGEX, "ab?c{3}").substr(0, 1), "a");
  EXPECT_EQ(said(HUNCH_STRUCTURE_GRAMMAR, "root ::= \"sail\""), "sail");
  const std::string chosen = said(HUNCH_STRUCTURE_CHOICE, nullptr);
  EXPECT_TRUE(chosen == choices[0] || chosen == choices[1]) << chosen;
}

}
}
