// A folder for each test of a fixture, gone with it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace hunch::test {

class FolderTest : public testing::Test {
 protected:
  FolderTest() { std::filesystem::create_directories(folder_); }
  ~FolderTest() override { std::filesystem::remove_all(folder_); }

  std::string at(const std::string& name) const { return folder_ + "/" + name; }
  // Makes the folders of `name` too.
  void put(const std::string& name, std::string_view text) const {
    std::filesystem::create_directories(std::filesystem::path(at(name)).parent_path());
    std::ofstream(at(name)) << text;
  }
  void put(const std::string& name, const std::vector<std::byte>& bytes) const {
    put(name, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }

  const std::string folder_ = testing::TempDir() + "hunch_test_" + std::to_string(getpid());
};

}
