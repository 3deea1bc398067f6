// GPT-2's byte alphabet: how vocabulary files spell arbitrary bytes as printable text. Each byte is one character: itself where
// it is printable Latin-1, else U+0100 + n for the n-th byte that is not. Used by Bpe.
#pragma once

#include <string>
#include <string_view>

namespace hunch {

// Appends the bytes that `spelling` stands for. False, with `out` unchanged, if a character is not of the alphabet.
bool append_spelt_bytes(std::string_view spelling, std::string& out);
// The spelling of bytes.
std::string spell_bytes(std::string_view bytes);

}
