// What a path can be besides a readable file, and that each case is named.
#include "checkpoint/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace hunch {
namespace {

class MappedFileTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string error_of(const std::string& path) {
    auto file = MappedFile::open(path);
    return file.ok() ? "opened" : file.error().message;
  }
  std::string folder_ = testing::TempDir() + "hunch_mapped_" + std::to_string(getpid());
};

TEST_F(MappedFileTest, HoldsTheBytesOfTheFileAlsoAfterAMove) {
  std::ofstream(folder_ + "/a") << "hello";
  auto file = MappedFile::open(folder_ + "/a");
  ASSERT_TRUE(file.ok());
  const MappedFile moved = std::move(file).value();
  ASSERT_EQ(moved.bytes().size(), 5u);
  EXPECT_EQ(char(moved.bytes()[4]), 'o');
}

TEST_F(MappedFileTest, NamesWhatIsWrongWithAPath) {
  std::ofstream(folder_ + "/empty");
  ASSERT_EQ(mkfifo((folder_ + "/fifo").c_str(), 0600), 0);
  EXPECT_NE(error_of(folder_ + "/none").find("No such file"), std::string::npos);
  EXPECT_NE(error_of(folder_).find("is a folder"), std::string::npos);
  EXPECT_NE(error_of(folder_ + "/fifo").find("not a regular file"), std::string::npos);
  EXPECT_NE(error_of("/dev/zero").find("not a regular file"), std::string::npos);
  EXPECT_NE(error_of(folder_ + "/empty").find("empty"), std::string::npos);
}

TEST_F(MappedFileTest, ReportsMissingPermission) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  std::ofstream(folder_ + "/secret") << "x";
  chmod((folder_ + "/secret").c_str(), 0);
  EXPECT_NE(error_of(folder_ + "/secret").find("Permission denied"), std::string::npos);
}

TEST_F(MappedFileTest, TextFilesHaveALimit) {
  std::ofstream(folder_ + "/text") << "12345";
  EXPECT_TRUE(read_text_file(folder_ + "/text", 5).ok());
  EXPECT_FALSE(read_text_file(folder_ + "/text", 4).ok());
}

}  // namespace
}  // namespace hunch
