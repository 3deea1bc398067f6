// Flags of other programs, which people bring along: what is harmless is ignored with one note, what would change the text and is
// not here is refused with what to do. `--help` does not list them.
#pragma once

#include "cli/flags.h"

namespace hunch {

// llama.cpp's, and SGLang's of memory and guesses. Names that are in `set` already keep their meaning.
void add_foreign_flags(FlagSet& set);
// Those of llama-server, vLLM and SGLang's server. To be called before add_foreign_flags(), which refuses some of the names.
void add_foreign_server_flags(FlagSet& set);
// The note on ignored flags, where there were any.
void note_ignored(const FlagSet& set);

// "-a --b" as names, also line by line; the text must outlive the table.
FlagSet::Names words(std::string_view text);
// Flags that are welcome where they ask for nothing: at one of these values.
void only_at(FlagSet& set, std::string_view names, std::string_view values);

}
