// What a part promises about the output of a run it takes part in. The engine reports the weakest link.
#pragma once

namespace hunch {

enum class Guarantee {
  Lossy,         // may change what the model says; off by default, labelled `lossless: false` wherever it shows
  Distribution,  // the output has exactly the target's distribution
  Stream,        // the output equals plain decoding bit for bit
};

}
