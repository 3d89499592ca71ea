"""Small models of Hugging Face's transformers: made with fixed values, and compared.

    python hugging_face.py make FOLDER      writes gpt2/ and llama/ (config.json, model.safetensors) and their logits
    python hugging_face.py compare FOLDER   for gpt2/ and llama/ in FOLDER: loads every folder listed in folders.json with
                                            from_pretrained, and its files with safetensors, and compares the logits with
                                            those that lie in FOLDER/MODEL/logits.safetensors
"""
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

IDS = torch.arange(24).reshape(2, 12) * 7 % 61


def models():
    gpt2 = GPT2Config(
        vocab_size=61, n_positions=16, n_embd=16, n_layer=4, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    llama = LlamaConfig(
        vocab_size=61, hidden_size=16, intermediate_size=24, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16, tie_word_embeddings=False,
    )
    return {"gpt2": (GPT2LMHeadModel, gpt2), "llama": (LlamaForCausalLM, llama)}


def logits_of(model):
    with torch.no_grad():
        return model.eval()(IDS).logits.contiguous()


def make(folder: Path):
    for name, (kind, config) in models().items():
        torch.manual_seed(3)
        model = kind(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        model.save_pretrained(folder / name, safe_serialization=True)
        (folder / name / "generation_config.json").unlink(missing_ok=True)
        save_file({"ids": IDS, "logits": logits_of(model)}, folder / name / "logits.safetensors")


def compare(folder: Path):
    failed = False
    for name, places in json.loads((folder / "folders.json").read_text()).items():
        wanted = load_file(folder / name / "logits.safetensors")["logits"]
        for place in places:
            model, info = AutoModelForCausalLM.from_pretrained(place, output_loading_info=True)
            difference = (logits_of(model) - wanted).abs().max().item()
            files = sorted(Path(place).glob("model-*.safetensors"))
            tensors = sum(len(load_file(file)) for file in files)
            missing = sorted(info["missing_keys"]) + sorted(info["unexpected_keys"])
            print(f"{name}: {Path(place).name}: {tensors} tensors in {len(files)} files, logits differ by {difference:.2e}, missing or unexpected: {missing}")
            failed = failed or not difference < 1e-5 or bool(missing) or tensors == 0
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    {"make": make, "compare": compare}[sys.argv[1]](Path(sys.argv[2]))
