// Guesses of a request with a grammar: what it refuses is cut off before the verifying pass, what it leaves no choice about is
// guessed for free. The output stays the same. Called by Step.
#pragma once

#include "draft/draft_tree.h"
#include "engine/grammar_mask.h"
#include "text/tokenizer.h"

namespace hunch {

// Drops guesses that the grammar refuses and all behind them. A chain then goes on with what is forced, up to `most` guesses.
// Drawn guesses (law Given) stay as they are: they were drawn under the grammar.
void keep_to(GrammarMask&, const Tokenizer&, int most, DraftTree&);

// After a pass that left masks out behind guesses: of the target's choices, a row each, those that the grammar forbids become -1.
void refuse_forbidden(GrammarMask&, const DraftTree&, View<int32_t, 1> choices);

// Fills the tree with a chain of forced tokens where it is worth a round: true; else the tree is left alone.
bool jump_ahead(GrammarMask&, const Tokenizer&, int most, DraftTree&);

}
