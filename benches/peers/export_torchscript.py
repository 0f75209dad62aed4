"""Exports TorchScript files of models with random weights, and a manifest for `tilefuse compare --manifest`.

usage: [DEVICE=cuda] export_torchscript.py FOLDER [NAME ...]
Needs torch, torchvision, timm and transformers; a model whose package is missing is left out with a line that says so.
"""
import json, os, sys, warnings

import torch, torch.nn as nn

warnings.filterwarnings("ignore")
torch.manual_seed(0)


class First(nn.Module):
    """A transformers model as a function from ids to its first result."""

    def __init__(self, model, key):
        super().__init__()
        self.model, self.key = model, key

    def forward(self, ids):
        return getattr(self.model(ids), self.key)


def vision(name):
    import torchvision.models as v
    return lambda: (getattr(v, name)(weights=None), ["f32[1,3,224,224]"])


def timm_model(name):
    def make():
        import timm
        return timm.create_model(name, pretrained=False), ["f32[1,3,224,224]"]
    return make


def hf(model, config, key, vocab, length=64, **options):
    def make():
        import transformers as t
        m = getattr(t, model)(getattr(t, config)(**options))
        return First(m, key), [f"i64[2,{length}]{{0..{vocab}}}"]
    return make


DEVICE = os.environ.get("DEVICE", "cpu")
EAGER = dict(attn_implementation="eager")
MODELS = {
    "tv_resnet18": vision("resnet18"),
    "tv_resnet50": vision("resnet50"),
    "tv_mobilenet_v3_large": vision("mobilenet_v3_large"),
    "tv_efficientnet_b0": vision("efficientnet_b0"),
    "tv_convnext_tiny": vision("convnext_tiny"),
    "tv_swin_t": vision("swin_t"),
    "tv_vit_b_16": vision("vit_b_16"),
    "tv_shufflenet_v2": vision("shufflenet_v2_x1_0"),
    "timm_deit_tiny": timm_model("deit_tiny_patch16_224"),
    "timm_mixer_s16": timm_model("mixer_s16_224"),
    "timm_convnext_atto": timm_model("convnext_atto"),
    "timm_swin_tiny": timm_model("swin_tiny_patch4_window7_224"),
    "timm_regnety": timm_model("regnety_004"),
    "hf_gpt2": hf("GPT2LMHeadModel", "GPT2Config", "logits", 50257, use_cache=False, **EAGER),
    "hf_gpt2_sdpa": hf("GPT2LMHeadModel", "GPT2Config", "logits", 50257, use_cache=False, n_layer=4),
    "hf_bert": hf("BertModel", "BertConfig", "last_hidden_state", 30522, **EAGER),
    "hf_distilbert": hf("DistilBertModel", "DistilBertConfig", "last_hidden_state", 30522),
    "hf_roberta": hf("RobertaModel", "RobertaConfig", "last_hidden_state", 50265, num_hidden_layers=4),
    "hf_llama": hf("LlamaForCausalLM", "LlamaConfig", "logits", 8000, use_cache=False, vocab_size=8000,
                   hidden_size=512, intermediate_size=1376, num_hidden_layers=6, num_attention_heads=8,
                   num_key_value_heads=4),
    "hf_mistral": hf("MistralForCausalLM", "MistralConfig", "logits", 8000, use_cache=False, vocab_size=8000,
                     hidden_size=512, intermediate_size=1376, num_hidden_layers=4, num_attention_heads=8,
                     num_key_value_heads=4, **EAGER),
    "hf_qwen2": hf("Qwen2ForCausalLM", "Qwen2Config", "logits", 8000, use_cache=False, vocab_size=8000,
                   hidden_size=512, intermediate_size=1376, num_hidden_layers=4, num_attention_heads=8,
                   num_key_value_heads=4),
}


def example(spec):
    shape = [int(n) for n in spec[spec.index("[") + 1:spec.index("]")].split(",")]
    if spec.startswith("i64"):
        return torch.randint(0, int(spec.rstrip("}").split("..")[1]), shape, device=DEVICE)
    return torch.randn(shape, device=DEVICE)


def main():
    folder, names = sys.argv[1], sys.argv[2:] or list(MODELS)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "manifest.jsonl"), "w") as manifest:
        for name in names:
            try:
                model, specs = MODELS[name]()
                model = model.eval().to(DEVICE)
                with torch.no_grad():
                    traced = torch.jit.trace(model, tuple(example(s) for s in specs), check_trace=False)
                path = os.path.join(os.path.abspath(folder), f"{name}.pt")
                traced.save(path)
            except Exception as error:
                print(f"{name}: left out, {type(error).__name__}: {str(error)[:200]}", flush=True)
                continue
            print(json.dumps(dict(name=name, model=path, inputs=specs)), file=manifest, flush=True)
            print(name, flush=True)


main()
