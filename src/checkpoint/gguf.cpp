// Order of the checks: a count is compared with what the rest of the file could hold before it is used, a length with the rest
// before it is skipped, an offset with the file before a span is made of it.
#include "checkpoint/gguf.h"

#include <algorithm>
#include <bit>
#include <unordered_set>

namespace hunch {
namespace {

using enum GgufType;

constexpr uint64_t kMostKeyBytes = 65535, kMostNameBytes = 255, kMostAlignment = 65536;
constexpr int kMostDims = 4;
constexpr uint64_t kMostEntries = 65536;  // tensors, and keys: far above real files, keeps the index of a hostile one small
// The shortest key-value: length, one letter, type, one byte; the shortest tensor: length, one letter, 1 dimension, type, offset.
constexpr uint64_t kLeastPairBytes = 8 + 1 + 4 + 1, kLeastTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

constexpr size_t size_of(GgufType type) {
  switch (type) {
    case U8:
    case I8:
    case Bool: return 1;
    case U16:
    case I16: return 2;
    case U32:
    case I32:
    case F32: return 4;
    case U64:
    case I64:
    case F64: return 8;
    case String:
    case Array: break;
  }
  return 0;  // of their own length
}

// A cursor that cannot leave the file.
class Reader {
 public:
  Reader(FileBytes file, std::string_view name) : file_(file), name_(name) {}

  uint64_t at() const { return at_; }
  uint64_t left() const { return file_.size() - at_; }
  Error fail(std::string_view what) const { return {fmt::format("{}: {} (at byte {})", name_, what, at_)}; }

  template <class T>
  Result<T> take(std::string_view what) {
    if (left() < sizeof(T)) return fail(fmt::format("truncated in {}", what));
    T value;
    std::memcpy(&value, file_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  Result<FileBytes> take_bytes(uint64_t count, std::string_view what) {
    if (count > left()) return fail(fmt::format("{} of {} bytes runs past the end of the file", what, count));
    const auto bytes = file_.subspan(at_, count);
    at_ += count;
    return bytes;
  }
  Result<std::string_view> take_string(std::string_view what, uint64_t most) {
    HUNCH_TRY(const uint64_t length, take<uint64_t>(what));
    if (length > left()) return fail(fmt::format("{} of {} bytes runs past the end of the file", what, length));
    if (length > most) return fail(fmt::format("{} of {} bytes, at most {}", what, length, most));
    HUNCH_TRY(const auto bytes, take_bytes(length, what));
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

 private:
  FileBytes file_;
  std::string_view name_;
  uint64_t at_ = 0;
};

Result<GgufType> take_type(Reader& in, std::string_view key) {
  HUNCH_TRY(const uint32_t number, in.take<uint32_t>("a value's type"));
  if (number > uint32_t(F64)) return in.fail(fmt::format("key {}: unknown value type {}", quote(key), number));
  return GgufType(number);
}

// Walks over a value; arrays of strings are measured string by string so that later reads need no checks of their own.
Result<GgufValue> take_value(Reader& in, FileBytes file, std::string_view key) {
  GgufValue value;
  HUNCH_TRY(value.type, take_type(in, key));
  if (value.type == String) {
    HUNCH_TRY(const std::string_view text, in.take_string(quote(key), UINT64_MAX));
    value.bytes = std::as_bytes(std::span(text));
    return value;
  }
  if (value.type != Array) {
    HUNCH_TRY(value.bytes, in.take_bytes(size_of(value.type), quote(key)));
    return value;
  }
  HUNCH_TRY(value.element, take_type(in, key));
  HUNCH_TRY(value.count, in.take<uint64_t>("an array's length"));
  if (value.element == Array) return in.fail(fmt::format("key {}: nested arrays are not read", quote(key)));
  const uint64_t least = value.element == String ? 8 : size_of(value.element);
  if (value.count > in.left() / least)
    return in.fail(fmt::format("key {}: array of {} elements runs past the end of the file", quote(key), value.count));
  if (value.element != String) {
    HUNCH_TRY(value.bytes, in.take_bytes(value.count * least, quote(key)));
    return value;
  }
  const uint64_t begin = in.at();
  for (uint64_t i = 0; i < value.count; ++i)
    if (auto text = in.take_string(key, UINT64_MAX); !text) return text.error();
  value.bytes = file.subspan(begin, in.at() - begin);
  return value;
}

// Name, shape, type and size; `offset` is left relative to the data section.
Result<TensorEntry> take_tensor(Reader& in, std::string_view file_name, IntegerTensors integers) {
  TensorEntry entry;
  HUNCH_TRY(const std::string_view name, in.take_string("a tensor's name", kMostNameBytes));
  entry.name = name;
  const Failing fail{[&] { return fmt::format("{}: tensor {}", file_name, quote(entry.name)); }};
  if (name.empty()) return in.fail("a tensor without a name");
  HUNCH_TRY(const uint32_t dims, in.take<uint32_t>("a tensor's rank"));
  if (dims < 1 || dims > kMostDims) return fail("{} dimensions, 1 to {} are possible", dims, kMostDims);
  entry.shape.resize(dims);
  uint64_t elements = 1;
  for (uint32_t d = 0; d < dims; ++d) {  // the file gives the fastest axis first
    HUNCH_TRY(const uint64_t n, in.take<uint64_t>("a tensor's shape"));
    if (n == 0 || n > uint64_t(INT64_MAX)) return fail("a dimension of {}", n);
    if (mul_overflows(elements, n, &elements)) return fail("the product of its dimensions overflows");
    entry.shape[dims - 1 - d] = int64_t(n);
  }
  HUNCH_TRY(const uint32_t type, in.take<uint32_t>("a tensor's type"));
  const auto dtype = dtype_of_ggml(type);
  const auto integer = integers == IntegerTensors::Read ? integer_type_of_ggml(type) : std::nullopt;
  if (integer) {
    entry.integer = *integer;
    if (mul_overflows(elements, integer_bytes(*integer), &entry.bytes)) return fail("its size in bytes overflows");
    HUNCH_TRY(entry.offset, in.take<uint64_t>("a tensor's offset"));
    return entry;
  }
  if (!dtype) {
    static constexpr std::string_view kKnown[] = {"", "", "", "Q4_1", "Q4_2", "Q4_3", "Q5_0", "Q5_1", "", "Q8_1", "Q2_K", "Q3_K",
        "", "", "", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS"};
    const std::string_view known = type < std::size(kKnown) && !kKnown[type].empty() ? kKnown[type] : "unknown";
    return fail("type {} ({}) is not supported; F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K, Q6_K and MXFP4 are", type, known);
  }
  entry.dtype = *dtype;
  const DTypeInfo info = dtype_info(*dtype);
  if (entry.shape.back() % info.block != 0)
    return fail(
        "rows of {} elements are no multiple of the {} elements of a {} block", entry.shape.back(), info.block, info.name);
  if (mul_overflows(elements / uint64_t(info.block), uint64_t(info.block_bytes), &entry.bytes))
    return fail("its size in bytes overflows");
  HUNCH_TRY(entry.offset, in.take<uint64_t>("a tensor's offset"));
  return entry;
}

bool align_up_overflows(uint64_t at, uint64_t alignment, uint64_t* out) {
  if (add_overflows(at, alignment - 1, out)) return true;
  *out &= ~(alignment - 1);
  return false;
}

// Makes offsets absolute; the tensors must follow each other with nothing but alignment between them, and end the file.
Status place_tensors(
    std::vector<TensorEntry>& tensors, uint64_t header_end, uint64_t alignment, uint64_t file_bytes, std::string_view file_name) {
  uint64_t data_start = 0;
  if (align_up_overflows(header_end, alignment, &data_start)) return failure("{}: alignment overflows", file_name);
  std::vector<TensorEntry*> order;
  for (TensorEntry& entry : tensors) order.push_back(&entry);
  std::ranges::sort(order, [](const TensorEntry* a, const TensorEntry* b) { return a->offset < b->offset; });
  const uint64_t data_bytes = data_start > file_bytes ? 0 : file_bytes - data_start;
  const auto fail = [&](const TensorEntry* entry, std::string_view what) {
    return failure("{}: tensor {}: {}", file_name, quote(entry->name), what);
  };
  for (const TensorEntry* entry : order) {
    uint64_t end = 0;
    if (add_overflows(entry->offset, entry->bytes, &end) || end > data_bytes)
      return fail(entry,
          fmt::format("runs past the end of the file: offset {}, {} bytes, {} in the file's data section", entry->offset,
              entry->bytes, data_bytes));
    if (entry->offset % alignment != 0)
      return fail(entry, fmt::format("offset {} is not aligned to {}", entry->offset, alignment));
  }
  uint64_t end = 0, due = 0;  // of the tensor before, without and with padding; inside the file, so nothing overflows below
  for (TensorEntry* entry : order) {
    if (entry->offset < end) return fail(entry, fmt::format("overlaps the tensor before it, at offset {}", entry->offset));
    if (entry->offset != due) return fail(entry, fmt::format("a gap of {} bytes before it", entry->offset - due));
    end = entry->offset + entry->bytes;
    if (align_up_overflows(end, alignment, &due)) return fail(entry, "its padding overflows");
    entry->offset += data_start;
  }
  // A writer may or may not pad the last tensor; more than that belongs to nothing.
  if (!tensors.empty() && data_bytes > due)
    return failure("{}: {} bytes after the last tensor belong to none", file_name, data_bytes - due);
  return {};
}

}

std::string_view gguf_type_name(GgufType type) {
  static constexpr std::string_view kNames[] = {
      "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[size_t(type)];
}

std::optional<DType> dtype_of_ggml(uint32_t type) {
  for (int i = 0; i < kNumDTypes; ++i)
    if (ggml_type_of(DType(i)) == type && type != kNoGgmlType) return DType(i);
  return std::nullopt;
}

uint32_t ggml_type_of(DType dtype) {
  using enum DType;
  switch (dtype) {
    case F32: return 0;
    case F16: return 1;
    case Q4_0: return 2;
    case Q8_0: return 8;
    case Q4_K: return 12;
    case Q5_K: return 13;
    case Q6_K: return 14;
    case BF16: return 30;
    case MXFP4: return 39;
    case F8_E4M3:
    case I16: break;
  }
  return kNoGgmlType;
}

std::optional<IntegerType> integer_type_of_ggml(uint32_t type) {
  for (const IntegerType integer : {IntegerType::I8, IntegerType::I32, IntegerType::I64})
    if (ggml_type_of(integer) == type) return integer;
  return std::nullopt;
}

uint32_t ggml_type_of(IntegerType type) {
  switch (type) {
    case IntegerType::I8: return 24;
    case IntegerType::I32: return 26;
    case IntegerType::I64: return 27;
    case IntegerType::None:
    case IntegerType::Bool:
    case IntegerType::U8: break;
  }
  return UINT32_MAX;
}

Result<GgufFile> GgufFile::parse(FileBytes file, std::string_view file_name, IntegerTensors integers) {
  Reader in(file, file_name);
  GgufFile out;
  out.file_ = file;
  out.file_name_ = file_name;
  if (file.size() < 4 || std::memcmp(file.data(), "GGUF", 4) != 0)
    return failure("{}: not a GGUF file: it does not begin with the letters GGUF", file_name);
  HUNCH_TRY([[maybe_unused]] const uint32_t magic, in.take<uint32_t>("the magic"));
  HUNCH_TRY(const uint32_t version, in.take<uint32_t>("the version"));
  if (version == 0x02000000u || version == 0x03000000u) return in.fail("big-endian GGUF is not supported");
  if (version != 2 && version != 3) return in.fail(fmt::format("GGUF version {} is not supported; 2 and 3 are", version));
  HUNCH_TRY(const uint64_t num_tensors, in.take<uint64_t>("the tensor count"));
  HUNCH_TRY(const uint64_t num_pairs, in.take<uint64_t>("the key count"));
  if (num_tensors > in.left() / kLeastTensorBytes)
    return in.fail(fmt::format("{} tensors announced, more than a file of {} bytes can hold", num_tensors, file.size()));
  if (num_pairs > in.left() / kLeastPairBytes)
    return in.fail(fmt::format("{} keys announced, more than a file of {} bytes can hold", num_pairs, file.size()));
  if (num_tensors > kMostEntries || num_pairs > kMostEntries)
    return in.fail(fmt::format("{} tensors and {} keys announced, at most {} each", num_tensors, num_pairs, kMostEntries));

  for (uint64_t i = 0; i < num_pairs; ++i) {
    HUNCH_TRY(const std::string_view key, in.take_string("a key", kMostKeyBytes));
    if (key.empty()) return in.fail("an empty key");
    HUNCH_TRY(const GgufValue value, take_value(in, file, key));
    if (!out.values_.emplace(key, value).second) return in.fail(fmt::format("duplicate key: {}", quote(key)));
    out.keys_.push_back(key);
  }
  uint64_t alignment = 32;
  if (const GgufValue* value = out.find("general.alignment")) {
    if (value->type != U32) return out.wrong("general.alignment", "must be a u32");
    HUNCH_TRY(const auto number, out.integer("general.alignment"));
    alignment = uint64_t(*number);
    if (!std::has_single_bit(alignment) || alignment > kMostAlignment)
      return out.wrong("general.alignment", "{} is not a power of two in 1..{}", alignment, kMostAlignment);
  }
  for (uint64_t i = 0; i < num_tensors; ++i) {
    HUNCH_TRY(TensorEntry entry, take_tensor(in, file_name, integers));
    out.tensors_.push_back(std::move(entry));
  }
  std::unordered_set<std::string_view> names;
  for (const TensorEntry& entry : out.tensors_)
    if (!names.insert(entry.name).second) return failure("{}: tensor {}: appears twice", file_name, quote(entry.name));
  HUNCH_OK(place_tensors(out.tensors_, in.at(), alignment, file.size(), file_name));
  return out;
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto at = values_.find(key);
  return at == values_.end() ? nullptr : &at->second;
}

namespace {

std::string type_of(const GgufValue& value) {
  if (value.type != Array) return std::string(gguf_type_name(value.type));
  return fmt::format("an array of {}", gguf_type_name(value.element));
}

template <class T>
T load(FileBytes bytes, uint64_t index = 0) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

}

Result<std::optional<int64_t>> GgufFile::integer(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return std::optional<int64_t>();
  const auto as = [&]<class T>(T) { return std::optional<int64_t>(load<T>(value->bytes)); };
  switch (value->type) {
    case U8: return as(uint8_t());
    case I8: return as(int8_t());
    case U16: return as(uint16_t());
    case I16: return as(int16_t());
    case U32: return as(uint32_t());
    case I32: return as(int32_t());
    case I64: return as(int64_t());
    case U64: {
      const uint64_t number = load<uint64_t>(value->bytes);
      if (number > uint64_t(INT64_MAX)) return wrong(key, "{} is out of range", number);
      return std::optional<int64_t>(int64_t(number));
    }
    default: return wrong(key, "expected an integer, found {}", type_of(*value));
  }
}

Result<std::optional<double>> GgufFile::number(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return std::optional<double>();
  if (value->type == F32) return std::optional<double>(load<float>(value->bytes));
  if (value->type == F64) return std::optional<double>(load<double>(value->bytes));
  return wrong(key, "expected f32 or f64, found {}", type_of(*value));
}

Result<std::optional<bool>> GgufFile::boolean(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return std::optional<bool>();
  if (value->type != Bool) return wrong(key, "expected a bool, found {}", type_of(*value));
  return std::optional<bool>(load<uint8_t>(value->bytes) != 0);
}

Result<std::optional<std::string_view>> GgufFile::text(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return std::optional<std::string_view>();
  if (value->type != String) return wrong(key, "expected a string, found {}", type_of(*value));
  return std::optional(std::string_view(reinterpret_cast<const char*>(value->bytes.data()), value->bytes.size()));
}

Result<std::vector<std::string>> GgufFile::texts(std::string_view key) const {
  std::vector<std::string> out;
  const GgufValue* value = find(key);
  if (!value) return out;
  if (value->type != Array || value->element != String)
    return wrong(key, "expected an array of strings, found {}", type_of(*value));
  out.reserve(value->count);  // at least 8 bytes of the file each
  const char* at = reinterpret_cast<const char*>(value->bytes.data());
  for (uint64_t i = 0; i < value->count; ++i) {  // lengths were checked when the file was walked
    uint64_t length;
    std::memcpy(&length, at, 8);
    out.emplace_back(at + 8, length);
    at += 8 + length;
  }
  return out;
}

Result<std::vector<int32_t>> GgufFile::integers(std::string_view key) const {
  std::vector<int32_t> out;
  const GgufValue* value = find(key);
  if (!value) return out;
  if (value->type != Array || (value->element != I32 && value->element != U32))
    return wrong(key, "expected an array of i32 or u32, found {}", type_of(*value));
  out.resize(value->count);
  if (value->count) std::memcpy(out.data(), value->bytes.data(), value->bytes.size());
  return out;
}

Result<std::vector<uint8_t>> GgufFile::booleans(std::string_view key) const {
  std::vector<uint8_t> out;
  const GgufValue* value = find(key);
  if (!value) return out;
  if (value->type != Array || value->element != Bool) return wrong(key, "expected an array of bool, found {}", type_of(*value));
  for (uint64_t i = 0; i < value->count; ++i) out.push_back(load<uint8_t>(value->bytes, i) != 0);
  return out;
}

}
