// staged: three levels. A look-up guesses behind the tokens at hand, a cheap pass of the target checks the guess, and once a
// round the chain that it left is checked exactly. The cheap pass is a draft pass of `self` (it reads the policy's selection, or
// what SparseCheck leaves), whose every row makes its own choice: guesses that equal the choices stay, the first other choice
// replaces the guess and the look-up goes on behind it, until the chain is long enough. So every token is the cheap pass's own,
// with its law, and the exact check knows of no look-up.

#include "draft/proposer.h"

namespace hunch {
namespace {

Proposer::Made make_staged(const Proposer::Setup& setup) {
  Proposer::Setup middle = setup;
  middle.options.self_lookup = setup.options.cascade_first;
  middle.options.self_staged = true;
  return Register<Proposer>::find("self")->make(middle);
}

const Register<Proposer> staged{
    "staged", "look-ups that cheap passes of the model check, many times before the exact check", make_staged};

}
}
