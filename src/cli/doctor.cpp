// hunch doctor: what this machine offers, what limits it, and what to set. Measures only how fast memory is read, which bounds
// the decoding of a long context.
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "backend/backend.h"
#include "backend/isas.h"
#include "base/clock.h"
#include "base/machine.h"
#include "checkpoint/model_info.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/request_flags.h"
#include "engine/cost_table.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;
// Bytes a second that `threads` read together: the best of several sweeps over a buffer that no cache holds. The sum is used, so
// that no compiler leaves the reading out.
double read_bandwidth(int threads, int64_t bytes) {
  const int64_t words = bytes / int64_t(sizeof(uint64_t)) / threads;
  std::vector<std::vector<uint64_t>> parts(threads);
  std::atomic<uint64_t> sum{0};
  const auto on_all = [&](auto&& work) {
    std::vector<std::thread> workers;
    for (auto& part : parts) workers.emplace_back([&work, &part] { work(part); });
    for (auto& worker : workers) worker.join();
  };
  on_all([&](std::vector<uint64_t>& part) { part.assign(words, 1); });  // by the thread that reads it
  double best = 0;
  for (int sweep = 0; sweep < 5; ++sweep) {
    const auto start = Clock::now();
    on_all([&](std::vector<uint64_t>& part) {
      uint64_t a = 0, b = 0, c = 0, d = 0;
      for (size_t i = 0; i + 4 <= part.size(); i += 4) a += part[i], b += part[i + 1], c += part[i + 2], d += part[i + 3];
      sum += a + b + c + d;
    });
    best =
        std::max(best, double(words) * sizeof(uint64_t) * threads / std::chrono::duration<double>(Clock::now() - start).count());
  }
  return sum > 0 ? best : 0;
}

// The word in brackets: "always [madvise] never".
std::string chosen_word(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  const size_t open = line.find('['), close = line.find(']');
  return open == line.npos || close == line.npos ? line : line.substr(open + 1, close - open - 1);
}

ordered_json cpu_json(std::vector<std::string>& advice) {
  ordered_json out;
  out["name"] = machine_fact("/proc/cpuinfo", "model name");
  out["cores_of_the_machine"] = std::thread::hardware_concurrency();
  const auto* part = Register<Backend>::find("cpu");
  auto best = part->make({});
  if (!best.ok()) return out;  // cannot be: the portable kernels run everywhere
  const int threads = (*best)->threads();
  out["threads"] = threads;
  out["instruction_sets"] = available_isas();
  out["kernels"] = (*best)->description();
  out["kv_type"] = dtype_info((*best)->default_kv_dtype()).name;
  if (threads < int(std::thread::hardware_concurrency()))
    advice.push_back(fmt::format("{} of {} cores may be used (affinity or a CPU quota): a larger quota makes prompts faster",
        threads, std::thread::hardware_concurrency()));
  if (out["instruction_sets"].size() == 1)
    advice.push_back("this CPU has no AVX2, or a virtual machine hides it: only the portable kernels run, several times slower");
  return out;
}

ordered_json memory_json(int threads, std::vector<std::string>& advice) {
  ordered_json out;
  const int64_t usable = usable_memory_bytes(), free = free_memory_bytes();
  out["usable_bytes"] = usable;
  out["free_bytes"] = free;
  out["limited_by_cgroup"] = cgroup_memory_limit("/sys/fs/cgroup") > 0;
  out["huge_pages"] = chosen_word("/sys/kernel/mm/transparent_hugepage/enabled");
  if (out["huge_pages"] == "never")
    advice.push_back("transparent huge pages are off: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root)");
  const int64_t bytes = std::min<int64_t>(int64_t(1) << 29, free / 4);
  if (bytes > (int64_t(64) << 20)) out["read_bytes_per_second"] = read_bandwidth(threads, bytes);
  if (free < usable / 8)
    advice.push_back("little memory is free: other programs hold it, and weights may be read from disk anew");
  return out;
}

ordered_json devices_json(std::vector<std::string>& advice) {
  ordered_json out = ordered_json::object();
  for (const auto& part : Register<Backend>::all()) {
    if (part.name == "cpu" || part.name == "reference") continue;
    const auto device = part.make({});
    ordered_json& one = out[std::string(part.name)];
    one["usable"] = device.ok();
    one[device.ok() ? "description" : "why_not"] = device.ok() ? device.value()->description() : device.error().message;
    if (device.ok()) one["memory_bytes"] = device.value()->memory_bytes();
  }
  std::error_code ignored;
  if (!Register<Backend>::find("cuda") && std::filesystem::exists("/dev/nvidiactl", ignored))
    advice.push_back("there is an NVIDIA GPU and this program was built without CUDA: scripts/build cuda");
  return out;
}

ordered_json surroundings_json(std::vector<std::string>& advice) {
  ordered_json out;
  struct rlimit files {};
  getrlimit(RLIMIT_NOFILE, &files);
  out["open_files"] = int64_t(files.rlim_cur);
  if (files.rlim_cur < 4096)
    advice.push_back(fmt::format(
        "only {} files may be open: a server of many connections wants more (ulimit -n 65536)", int64_t(files.rlim_cur)));
  const std::string cache = cache_path("costs", {});
  const auto folder = std::filesystem::path(cache).parent_path();
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  const bool writable = !cache.empty() && !failed && access(folder.c_str(), W_OK) == 0;
  out["cache_folder"] = folder.string();
  out["cache_writable"] = writable;
  if (!writable)
    advice.push_back(
        "measured costs cannot be kept: set XDG_CACHE_HOME to a folder that can be written, or each start learns anew");
  return out;
}

// What decoding costs at least on this memory, with the model that other commands would take.
ordered_json model_json(double bandwidth, std::vector<std::string>& advice) {
  const auto path = model_path({});
  if (!path.ok()) {
    advice.push_back(path.error().message);
    return nullptr;
  }
  const auto checkpoint = Checkpoint::open(path.value(), /*vocab_only=*/true);
  if (!checkpoint.ok()) {
    advice.push_back(checkpoint.error().message);
    return nullptr;
  }
  const ModelShape& shape = checkpoint.value()->shape();
  const ModelInfo info = describe(*checkpoint.value());
  const double kv = kv_bytes_per_token(shape, DType::BF16) * shape.context_len;
  ordered_json out{{"path", path.value()}, {"name", shape.name}, {"context_len", shape.context_len}};
  out["kv_bytes_of_a_full_context"] = kv;
  out["weight_bytes_per_token"] = info.weight_bytes_per_token;
  if (bandwidth > 0) out["tokens_per_second_at_most"] = bandwidth / (kv + double(info.weight_bytes_per_token));
  return out;
}

std::string text_of(const ordered_json& j) {
  NamedLines line{14};
  const auto bytes = [](const ordered_json& v) { return bytes_text(v.get<double>()); };
  const auto& cpu = j["cpu"];
  line("cpu", "{}, {} of {} cores", cpu["name"].get<std::string>(), cpu.value("threads", 0),
      cpu["cores_of_the_machine"].get<int>());
  std::string sets;
  for (const auto& isa : cpu["instruction_sets"]) sets += (sets.empty() ? "" : ", ") + isa.get<std::string>();
  line("kernels", "{} (runs {}); KV cache in {}", cpu["kernels"].get<std::string>(), sets, cpu["kv_type"].get<std::string>());
  const auto& memory = j["memory"];
  line("memory", "{} usable{}, {} free; huge pages {}", bytes(memory["usable_bytes"]),
      memory["limited_by_cgroup"] ? " (a limit of the control group)" : "", bytes(memory["free_bytes"]),
      memory["huge_pages"].get<std::string>());
  if (memory.contains("read_bytes_per_second")) line("reading", bytes(memory["read_bytes_per_second"]) + " a second, measured");
  for (const auto& [name, device] : j["devices"].items())
    line(name,
        device["usable"].get<bool>()
            ? fmt::format("{}, {}", device["description"].get<std::string>(), bytes(device["memory_bytes"]))
            : "not usable: " + device["why_not"].get<std::string>());
  if (j["devices"].empty()) line("devices", "none was built in");
  line("cache", "{}{}", j["cache_folder"].get<std::string>(), j["cache_writable"] ? "" : " (not writable)");
  line("open files", std::to_string(j["open_files"].get<int64_t>()));
  if (!j["model"].is_null()) {
    const auto& model = j["model"];
    line("model", model["path"]);
    if (model.contains("tokens_per_second_at_most"))
      line("", "plain decoding at its whole context of {} tokens reads {} a token: {:.3g} tokens/s at most",
          model["context_len"].get<int64_t>(),
          bytes_text(model["kv_bytes_of_a_full_context"].get<double>() + model["weight_bytes_per_token"].get<double>()),
          model["tokens_per_second_at_most"].get<double>());
  }
  line.text += j["advice"].empty() ? "\nNothing to set.\n" : "\nTo set:\n";
  for (const auto& advice : j["advice"]) line.text += "  - " + wrapped(advice.get<std::string>(), 96, 4) + "\n";
  return line.text;
}

}

Result<int> doctor_command(Arguments arguments) {
  bool json = false;
  FlagSet set("hunch doctor [--json]", "What this machine offers, what limits it, and what to set. Takes about a second.");
  set.group("Flags");
  set.toggle({"--json"}, "print one JSON object", json);
  if (const auto ended = parsed(set, arguments)) return *ended;
  std::vector<std::string> advice;
  ordered_json out;
  out["version"] = std::string(version_line());
  out["cpu"] = cpu_json(advice);
  out["memory"] = memory_json(std::max(1, out["cpu"].value("threads", 1)), advice);
  out["devices"] = devices_json(advice);
  out.update(surroundings_json(advice));
  out["model"] = model_json(out["memory"].value("read_bytes_per_second", 0.0), advice);
  out["advice"] = advice;
  return print_and_exit_code(json ? json_line(out) + "\n" : text_of(out));
}

}
