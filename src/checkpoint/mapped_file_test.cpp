// What a path can be besides a readable file, and that each case is named.
#include "checkpoint/mapped_file.h"

#include <sys/stat.h>

#include "base/test_folder.h"
#include "base/test_results.h"

namespace hunch {
namespace {

using test::expect_error;

class MappedFileTest : public test::FolderTest {};

TEST_F(MappedFileTest, HoldsTheBytesOfTheFileAlsoAfterAMove) {
  put("a", "hello");
  auto file = test::good(MappedFile::open(at("a")));
  const MappedFile moved = std::move(file);
  ASSERT_EQ(moved.bytes().size(), 5u);
  EXPECT_EQ(char(moved.bytes()[4]), 'o');
}

TEST_F(MappedFileTest, NamesWhatIsWrongWithAPath) {
  put("empty", "");
  ASSERT_EQ(mkfifo(at("fifo").c_str(), 0600), 0);
  expect_error(MappedFile::open(at("none")), "No such file");
  expect_error(MappedFile::open(folder_), "is a folder");
  expect_error(MappedFile::open(at("fifo")), "not a regular file");
  expect_error(MappedFile::open("/dev/zero"), "not a regular file");
  expect_error(MappedFile::open(at("empty")), "empty");
}

TEST_F(MappedFileTest, ReportsMissingPermission) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  put("secret", "x");
  chmod(at("secret").c_str(), 0);
  expect_error(MappedFile::open(at("secret")), "Permission denied");
}

TEST_F(MappedFileTest, TextFilesHaveALimit) {
  put("text", "12345");
  EXPECT_TRUE(read_text_file(at("text"), 5).ok());
  EXPECT_FALSE(read_text_file(at("text"), 4).ok());
}

}
}
