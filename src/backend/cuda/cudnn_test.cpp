// Attention beside cuDNN's (cudnn_attention.py). Skipped without PyTorch.
#include <sys/wait.h>

#include "backend/cuda/attention_fixture.h"
#include "base/test_folder.h"

namespace hunch {
namespace {

using namespace test;

class CudaAttentionOracle : public FolderTest {};

TEST_F(CudaAttentionOracle, IsAsNearToExactAsCudnn) {
  HUNCH_NEEDS_DEVICE();
  const char* carried = std::getenv("HUNCH_ROOT");
  std::string command = std::string("python3 ") + (carried ? carried : HUNCH_ROOT) + "/src/backend/cuda/cudnn_attention.py";
  auto commands = Commands::make().value();
  CudaAttention attention;
  for (const KvShape shape : {KvShape{DType::BF16, 2, 4, 128}, {DType::BF16, 1, 8, 64}})
    for (const auto& [len, rows] : std::initializer_list<std::pair<int64_t, int64_t>>{
             {70, 1}, {700, 1}, {5000, 1}, {5000, 8}, {9300, 12}, {2100, 65}, {1300, 1300}}) {
      KvPair kv(*commands, shape, len);
      const auto request = chunk(shape, len - rows, rows);
      const auto out = attend(commands.get(), &attention, {&kv}, {request})[0].out;
      std::string bytes;
      const auto add = [&](const auto& values) {
        bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof values[0]);
      };
      add(Ints{int32_t(len), int32_t(rows), shape.kv_heads, shape.group, shape.head_dim});
      for (const auto& values : {kv.keys(1), kv.values(1), request.q, out}) add(values);
      const auto name = (testing::Message() << shape.head_dim << "-" << len << "-" << rows).GetString();
      put(name, bytes);
      command += " '" + at(name) + "'";
    }
  std::string said;
  FILE* python = popen((command + " 2>&1").c_str(), "r");
  ASSERT_TRUE(python);
  for (char text[256]; fgets(text, sizeof text, python);) said += text;
  const int status = pclose(python), code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code == 77 || code == 127) GTEST_SKIP() << said;
  EXPECT_EQ(code, 0) << said;
}

}
}
