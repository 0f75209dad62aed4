"""Writes the reference checkpoints of this folder: tiny models of other libraries with random weights, and what
those libraries compute with them.

usage: python make.py      needs torch, transformers, torchvision, timm and safetensors

Each file holds the weights under their own names, rounded to bf16, the inputs as `input.N` and the outputs in f32
as `output.N`.
"""
import pathlib

import timm.models.mlp_mixer as mixer
import torch
import transformers as hf
from safetensors.torch import save_file
from torchvision.models.swin_transformer import SwinTransformer
from torchvision.models.vision_transformer import VisionTransformer

HERE = pathlib.Path(__file__).parent


def write(name, model, inputs, outputs, drop=()):
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.08)
            parameter.copy_(parameter.bfloat16())
        results = outputs(model)
    weights = {key: value for key, value in model.state_dict().items() if key not in drop}
    tensors = {key: value.bfloat16() if value.is_floating_point() else value for key, value in weights.items()}
    tensors |= {f"input.{i}": value for i, value in enumerate(inputs)}
    tensors |= {f"output.{i}": value.float() for i, value in enumerate(results)}
    save_file({key: value.contiguous().clone() for key, value in tensors.items()}, HERE / f"{name}.safetensors")


def gpt2(ids):
    config = hf.GPT2Config(vocab_size=97, n_positions=24, n_embd=32, n_layer=2, n_head=4)
    write("gpt2", hf.GPT2LMHeadModel(config), [ids], lambda m: [m(ids).logits], drop=["lm_head.weight"])


def llama(ids):
    config = hf.LlamaConfig(
        vocab_size=97, max_position_embeddings=24, hidden_size=32, intermediate_size=56, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, rope_theta=10000.0,
    )
    write("llama", hf.LlamaForCausalLM(config), [ids], lambda m: [m(ids).logits])


def bert(ids):
    config = hf.BertConfig(
        vocab_size=97, max_position_embeddings=24, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4,
    )
    types = torch.randint(2, ids.shape)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0

    def outputs(model):
        result = model.bert(ids, token_type_ids=types, attention_mask=mask)
        return [result.last_hidden_state, result.pooler_output]

    write("bert", hf.BertForNextSentencePrediction(config), [ids, types, mask], outputs)


def vit(image):
    model = VisionTransformer(image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64,
                              num_classes=10)
    write("vit", model, [image], lambda m: [m(image)])


def mlp_mixer(image):
    model = mixer.MlpMixer(img_size=32, patch_size=8, num_blocks=2, embed_dim=32, mlp_ratio=(0.75, 2.0),
                           num_classes=10)
    write("mixer", model, [image], lambda m: [m(image)])


def swin(image):
    model = SwinTransformer(patch_size=[4, 4], embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=[3, 3],
                            num_classes=10)
    write("swin", model, [image], lambda m: [m(image)])


torch.manual_seed(0)
ids = torch.randint(97, (2, 9))
image = torch.randn(2, 3, 32, 32)
gpt2(ids), llama(ids), bert(ids), vit(image), mlp_mixer(image), swin(image)
