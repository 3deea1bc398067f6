#include "cli/foreign_flags.h"

namespace hunch {

void add_foreign_server_flags(FlagSet& set) {
  using A = FlagSet::Arity;
  // vLLM's, of memory, speed and logs.
  set.ignore(words(R"(--block-size --swap-space --dtype --generation-config --max-logprobs --prefix-caching-hash-algo
--fingerprint-mode --max-log-len --distributed-executor-backend --load-format --tokenizer-mode --scheduling-policy
--max-num-queued-tokens --model-impl --revision --code-revision --tokenizer-revision --compilation-config -cc -O
--optimization-level --performance-mode --max-seq-len-to-capture --cuda-graph-sizes --chat-template-content-format
--limit-mm-per-prompt --cpu-offload-gb --api-server-count --download-dir --stream-interval
--guided-decoding-backend --structured-outputs-config --root-path --config-format --attention-* --moe-backend --kernel-config
--max-num-partial-prefills --max-long-partial-prefills --long-prefill-token-threshold --allowed-methods --allowed-headers
--otlp-traces-endpoint --log-config-file --max-parallel-loading-workers
--safetensors-load-strategy --model-loader-extra-config)"),
      A::One);
  set.ignore(words(R"(--enforce-eager --no-enforce-eager --enable-chunked-prefill --no-enable-chunked-prefill -O0 -O1 -O2 -O3
--disable-log-* --enable-log-* --no-enable-log-requests --disable-uvicorn-access-log --enable-auto-tool-choice
--enable-request-id-headers --enable-per-request-metrics --enable-prompt-tokens-details --async-scheduling --no-async-scheduling
--disable-fastapi-docs --enable-server-load-tracking --trust-remote-code --disable-cascade-attn --disable-custom-all-reduce
--enable-expert-parallel -ep --allow-credentials --disable-frontend-multiprocessing --enable-sleep-mode --calculate-kv-scales
--allow-deprecated-quantization --disable-hybrid-kv-cache-manager --numa-bind --language-model-only --use-tqdm-on-load)"),
      A::None);
  only_at(set, "--task --runner --convert", "auto generate none");
  only_at(set, "--hf-overrides --override-generation-config --additional-config --kv-transfer-config", "{} null");
  only_at(set, "--logprobs-mode", "raw_logprobs");
  only_at(set, "--response-role", "assistant");
  // llama-server's.
  set.ignore(words("--cache-reuse -sps --slot-prompt-similarity --models-max --webui-config --ui-config --image-*"), A::One);
  set.ignore(words(R"(--cache-prompt --no-cache-prompt --webui --no-webui --ui --no-ui --no-mmproj --mmproj-auto --no-mmproj-auto
--reuse-port --no-prefill-assistant --cache-idle-slots --no-cache-idle-slots)"),
      A::None);
  only_at(set, "--sleep-idle-seconds", "-1");
  // SGLang's.
  set.ignore(words(R"(--page-size --schedule-policy --schedule-conservativeness --watchdog-timeout --cuda-graph-max-bs
--sampling-backend --grammar-backend --max-total-tokens --max-prefill-tokens)"),
      A::One);
  set.ignore(words("--disable-cuda-graph --log-requests --skip-server-warmup --enable-torch-compile"), A::None);

  const auto only_one = [](auto flag, auto text) -> Status {
    if (text == "1") return {};
    return usage_error("{}: one device runs a model here; leave it out or at 1", flag);
  };
  set.value(words(R"(--tensor-parallel-size -tp --tp --tp-size --pipeline-parallel-size -pp --pp-size --data-parallel-size -dp
--dp-size --ep-size --decode-context-parallel-size -dcp)"),
      "N", "", only_one, 0);
  set.refuse(words("--ssl-*"), "the server speaks plain HTTP; put a proxy in front of it for TLS");
  set.refuse(words("--quantization -q"), "weights are served as the file has them; hunch quantize makes another file");
  set.refuse(words("--tokenizer --tokenizer-path"), "a model is read with its own; put the files into its folder");
  set.refuse(words("--prefill-assistant"), "the last turn is not continued; send it behind the prompt to /v1/completions");
  set.refuse(words("--middleware --tool-parser-plugin --reasoning-parser-plugin --logits-processors"), "no Python runs here");
  set.refuse(words(R"(--kv-offloading-size --slot-save-path --embedding --embeddings --rerank --reranking --pooling --path
--api-prefix --media-path --models-dir --tools --tool-server --lora-* --enable-lora --skip-tokenizer-init --disable-sliding-window
--headless --exclude-tools-when-tool-choice-none --return-tokens-as-token-ids)"),
      "not available");
}

}
