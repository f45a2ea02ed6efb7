"""Programs of the libraries people use, whole, as `torchfake run` runs them. The extra `ecosystem` names these."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from torchfake.modes import fake_mode
from torchfake.run_program import Launch, Program, run_program


def _run(
    folder: Path, text: str, capsys: pytest.CaptureFixture[str], gpus: str = "H200", launch: Launch | None = None
) -> str:
    path = folder / "program.py"
    path.write_text(textwrap.dedent(text))
    code = run_program(
        Program(str(path), False, [str(folder)]), fake_mode(gpus=gpus, unknown="stand-in"), launch=launch, quiet=True
    )
    output = capsys.readouterr()
    assert code == 0, output.err
    return output.out


def test_generation_goes_on_to_its_limit(tmp_path, capsys):
    out = _run(
        tmp_path,
        """
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM, set_seed
        set_seed(0)
        config = LlamaConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
                             vocab_size=100, pad_token_id=0)
        model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
        ids = torch.randint(3, 100, (2, 7)).cuda()
        mask = torch.ones_like(ids)
        for options in ({"do_sample": False}, {"do_sample": True, "top_p": 0.9, "top_k": 50, "temperature": 0.7},
                        {"cache_implementation": "static", "disable_compile": True}):
            print(tuple(model.generate(ids, attention_mask=mask, max_new_tokens=4, **options).shape))
        """,
        capsys,
    )
    assert out.splitlines() == ["(2, 11)"] * 3


def test_a_model_is_saved_and_loaded_onto_cards(tmp_path, capsys):
    pytest.importorskip("accelerate", reason="device_map needs accelerate, of the extra `ecosystem`")
    out = _run(
        tmp_path,
        """
        import sys, torch
        from transformers import LlamaConfig, LlamaForCausalLM
        config = LlamaConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
                             vocab_size=100)
        LlamaForCausalLM(config).save_pretrained(sys.argv[1] + "/saved")
        model = LlamaForCausalLM.from_pretrained(sys.argv[1] + "/saved", device_map="auto", dtype=torch.bfloat16)
        print(model.device, model.dtype, tuple(model(torch.ones(1, 4, dtype=torch.long, device="cuda")).logits.shape))
        """,
        capsys,
    )
    assert out == "cuda:0 torch.bfloat16 (1, 4, 100)\n"


def test_trainer_trains_evaluates_and_saves(tmp_path, capsys):
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate, of the extra `ecosystem`")
    out = _run(
        tmp_path,
        """
        import sys, numpy as np, torch
        from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 16
            def __getitem__(self, i):
                generator = torch.Generator().manual_seed(i)
                return {"input_ids": torch.randint(0, 100, (16,), generator=generator), "labels": torch.tensor(i % 2)}
        config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                            vocab_size=100)
        arguments = TrainingArguments(
            sys.argv[1] + "/out", per_device_train_batch_size=4, num_train_epochs=1, bf16=True, report_to=[],
            gradient_checkpointing=True, eval_strategy="epoch", save_strategy="epoch", logging_steps=2,
            load_best_model_at_end=True, disable_tqdm=True)
        trainer = Trainer(
            BertForSequenceClassification(config), arguments, train_dataset=Data(), eval_dataset=Data(),
            compute_metrics=lambda p: {"right": float((np.argmax(p.predictions, -1) == p.label_ids).mean())})
        trainer.train()
        print(trainer.state.global_step, trainer.model.device, sorted(trainer.evaluate())[:2])
        """,
        capsys,
    )
    assert out.splitlines()[-1] == "4 cuda:0 ['epoch', 'eval_loss']"
    assert (tmp_path / "out" / "checkpoint-4" / "model.safetensors").exists()


def test_adapters_train_under_accelerate(tmp_path, capsys):
    pytest.importorskip("peft", reason="of the extra `ecosystem`")
    pytest.importorskip("accelerate", reason="of the extra `ecosystem`")
    out = _run(
        tmp_path,
        """
        import sys, torch
        from accelerate import Accelerator
        from peft import LoraConfig, get_peft_model
        from transformers import LlamaConfig, LlamaForCausalLM
        accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
        config = LlamaConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
                             vocab_size=100)
        lora = LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
        model = get_peft_model(LlamaForCausalLM(config), lora)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
        data = [{"input_ids": torch.randint(0, 100, (8,)), "labels": torch.randint(0, 100, (8,))} for _ in range(8)]
        loader = torch.utils.data.DataLoader(data, 2, shuffle=True)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.save_state(sys.argv[1] + "/state")
        accelerator.load_state(sys.argv[1] + "/state")
        print(accelerator.device, accelerator.gather(loss).mean().item())
        """,
        capsys,
    )
    assert out.splitlines()[-1] == "cuda 1.0"


def test_sharded_modules_train_as_one_rank(tmp_path, capsys):
    out = _run(
        tmp_path,
        """
        import os, torch, torch.distributed as dist, torch.nn as nn
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).cuda()
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        older = FullyShardedDataParallel(nn.Linear(64, 64).cuda(), use_orig_params=True)
        for module in (model, older):
            optimizer = torch.optim.AdamW(module.parameters())
            for _ in range(2):
                module(torch.randn(8, 64, device="cuda")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        print(tuple(model[0].weight.to_local().shape))
        dist.destroy_process_group()
        """,
        capsys,
        gpus="8xH100-80GB",
        launch=Launch(1, 8, 3),
    )
    assert out == "(8, 64)\n"
