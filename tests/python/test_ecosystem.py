"""Whole programs using popular libraries, run by `torchfake run`. The extra `ecosystem` lists these."""

from __future__ import annotations

import os
import subprocess
import sys
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
                        {"num_beams": 3}, {"cache_implementation": "static", "disable_compile": True}):
            print(tuple(model.generate(ids, attention_mask=mask, max_new_tokens=4, **options).shape))
        """,
        capsys,
    )
    assert out.splitlines() == ["(2, 11)"] * 4


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


def test_speech_is_transcribed_and_the_scores_of_beams_are_computed(tmp_path, capsys):
    out = _run(
        tmp_path,
        """
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM, WhisperConfig, WhisperForConditionalGeneration
        small = dict(vocab_size=100, pad_token_id=0, bos_token_id=1, eos_token_id=2)
        whisper = WhisperForConditionalGeneration(WhisperConfig(
            d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
            encoder_ffn_dim=32, decoder_ffn_dim=32, num_mel_bins=8, max_source_positions=50, max_target_positions=32,
            decoder_start_token_id=3, suppress_tokens=None, begin_suppress_tokens=None, **small)).cuda()
        whisper.generation_config.no_timestamps_token_id = 90
        print(tuple(whisper.generate(torch.randn(2, 8, 100, device="cuda"), max_new_tokens=5).shape))
        llama = LlamaForCausalLM(LlamaConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                                             intermediate_size=32, **small)).cuda()
        ids = torch.randint(3, 100, (2, 7), device="cuda")
        found = llama.generate(ids, num_beams=3, max_new_tokens=5, output_scores=True, return_dict_in_generate=True)
        scores = llama.compute_transition_scores(found.sequences, found.scores, found.beam_indices)
        print(tuple(found.sequences.shape), tuple(scores.shape))
        """,
        capsys,
    )
    assert out.splitlines()[-2:] == ["(2, 5)", "(2, 12) (2, 5)"]


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


def test_lightning_fits_evaluates_and_resumes(tmp_path, capsys):
    pytest.importorskip("lightning", reason="of the extra `ecosystem`")
    out = _run(
        tmp_path,
        """
        import sys, lightning as L, torch, torch.nn.functional as F
        from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
        from torch.utils.data import DataLoader, TensorDataset
        class Classifier(L.LightningModule):
            def __init__(self, lr=1e-3):
                super().__init__()
                self.save_hyperparameters()
                self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(), torch.nn.Linear(16, 4))
            def training_step(self, batch, index):
                loss = F.cross_entropy(self.net(batch[0]), batch[1])
                self.log("train_loss", loss)
                return loss
            def validation_step(self, batch, index):
                self.log("val_loss", F.cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)
            def configure_optimizers(self):
                optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
                schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
                return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}
        loader = DataLoader(TensorDataset(torch.randn(32, 8), torch.randint(0, 4, (32,))), 8, shuffle=True)
        best = ModelCheckpoint(sys.argv[1], monitor="val_loss", save_last=True)
        for options in ({"precision": "bf16-mixed", "callbacks": [best, EarlyStopping("val_loss")]},
                        {"strategy": "ddp", "enable_checkpointing": False}):
            trainer = L.Trainer(max_epochs=1, accelerator="gpu", devices=1, logger=False, gradient_clip_val=1.0,
                                enable_progress_bar=False, enable_model_summary=False, **options)
            trainer.fit(Classifier(), loader, loader)
            print(trainer.global_step, trainer.strategy.root_device)
        print(Classifier.load_from_checkpoint(best.best_model_path).hparams.lr)
        """,
        capsys,
    )
    assert out.splitlines()[-3:] == ["4 cuda:0", "4 cuda:0", "0.001"]


def test_a_diffusion_model_trains_and_samples(tmp_path, capsys):
    pytest.importorskip("diffusers", reason="of the extra `ecosystem`")
    out = _run(
        tmp_path,
        """
        import sys, torch, torch.nn.functional as F
        from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
        from diffusers.optimization import get_cosine_schedule_with_warmup
        model = UNet2DModel(sample_size=16, layers_per_block=1, block_out_channels=(16, 32), norm_num_groups=8,
                            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                            up_block_types=("AttnUpBlock2D", "UpBlock2D")).cuda()
        scheduler = DDPMScheduler(num_train_timesteps=100)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        schedule = get_cosine_schedule_with_warmup(optimizer, 1, 4)
        for _ in range(2):
            clean = torch.randn(2, 3, 16, 16, device="cuda")
            noise = torch.randn_like(clean)
            steps = torch.randint(0, 100, (2,), device="cuda").long()
            with torch.autocast("cuda", torch.float16):
                loss = F.mse_loss(model(scheduler.add_noise(clean, noise, steps), steps).sample, noise)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        pipeline = DDPMPipeline(model, scheduler).to("cuda")
        pipeline.set_progress_bar_config(disable=True)
        print(loss.item(), pipeline(batch_size=2, num_inference_steps=2).images[0].size)
        """,
        capsys,
    )
    assert out.splitlines()[-1] == "1.0 (16, 16)"


def test_graph_networks_train(tmp_path, capsys):
    pytest.importorskip("torch_geometric", reason="of the extra `ecosystem`")
    out = _run(
        tmp_path,
        """
        import torch, torch.nn.functional as F
        from torch_geometric.data import Data
        from torch_geometric.loader import DataLoader
        from torch_geometric.nn import GATConv, GCNConv, global_mean_pool
        data = Data(x=torch.randn(40, 8), edge_index=torch.randint(0, 40, (2, 90)), y=torch.randint(0, 3, (40,)))
        data.train_mask = torch.rand(40) < 0.5
        data = data.to("cuda")
        for convolution in (GCNConv, GATConv):
            layer = convolution(8, 3).cuda()
            optimizer = torch.optim.Adam(layer.parameters(), weight_decay=5e-4)
            out = F.log_softmax(layer(data.x, data.edge_index), 1)
            F.nll_loss(out[data.train_mask], data.y[data.train_mask]).backward()
            optimizer.step()
            right = (out.argmax(1)[~data.train_mask] == data.y[~data.train_mask]).sum()
            print(int(right) / int((~data.train_mask).sum()))
        def graph():
            return Data(x=torch.randn(4, 8), edge_index=torch.randint(0, 4, (2, 6)), y=torch.tensor([0]))
        graphs = [graph() for _ in range(6)]
        for batch in DataLoader(graphs, batch_size=3, shuffle=True):
            batch = batch.to("cuda")
            print(tuple(global_mean_pool(layer(batch.x, batch.edge_index), batch.batch).shape))
        """,
        capsys,
    )
    assert out.splitlines()[-2:] == ["(3, 3)", "(3, 3)"]


# ---- Libraries in a folder of their own ------------------------------------------------------------------------------


def _run_beside(library: str, folder: Path, text: str) -> str:
    """Runs a program with the libraries that `bash run` installs in a folder of their own."""
    libraries = Path(sys.prefix) / "libraries" / library
    if not libraries.is_dir():
        pytest.skip(f"needs the extra `{library}` in {libraries}: bash run test installs it")
    path = folder / "program.py"
    path.write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, "-m", "torchfake", "run", "--quiet", "--gpu", "H200", str(path), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(libraries), os.environ.get("PYTHONPATH", "")])},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_detection_models_train_and_find_and_timm_trains(tmp_path):
    out = _run_beside(
        "compiled-for-cuda",
        tmp_path,
        """
        import timm, torch, torchvision
        from timm.data import Mixup
        from timm.loss import SoftTargetCrossEntropy
        from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn
        from torchvision import transforms as T
        from PIL import Image
        model = fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, num_classes=3).cuda()
        images = [T.ToTensor()(Image.new("RGB", (90, 80))).cuda() for _ in range(2)]
        target = {"boxes": torch.tensor([[5.0, 5.0, 40.0, 40.0]]).cuda(), "labels": torch.tensor([1]).cuda()}
        losses = model(images, [target, target])
        sum(losses.values()).backward()
        with torch.no_grad():
            found = model.eval()(images)
        print(images[0].dtype, sorted(losses)[0], tuple(found[0]["boxes"].shape))
        network = timm.create_model("resnet18", num_classes=10, drop_path_rate=0.1).cuda()
        mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=10)
        x, y = mixup(torch.randn(4, 3, 64, 64).cuda(), torch.randint(0, 10, (4,)).cuda())
        with torch.autocast("cuda"):
            SoftTargetCrossEntropy()(network(x), y).backward()
        print(tuple(y.shape), network.fc.weight.grad.device)
        """,
    )
    assert out.splitlines() == ["torch.float32 loss_box_reg (100, 4)", "(4, 10) cuda:0"]


def test_weights_are_quantized(tmp_path):
    out = _run_beside(
        "compiled-for-cuda",
        tmp_path,
        """
        import torch
        from torchao.quantization import Float8WeightOnlyConfig, Int4WeightOnlyConfig, Int8WeightOnlyConfig, quantize_
        int4 = Int4WeightOnlyConfig(group_size=128, int4_packing_format="tile_packed_to_4d")
        for config in (Int8WeightOnlyConfig(), Float8WeightOnlyConfig(), int4):
            layer = torch.nn.Sequential(torch.nn.Linear(128, 256)).to("cuda", torch.bfloat16)
            quantize_(layer, config)
            print(tuple(layer(torch.randn(4, 128, device="cuda", dtype=torch.bfloat16)).shape))
        """,
    )
    assert out.splitlines()[-3:] == ["(4, 256)"] * 3


def test_the_next_transformers_trains_and_generates(tmp_path):
    out = _run_beside(
        "transformers-5",
        tmp_path,
        """
        import sys, torch, transformers
        from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
        config = LlamaConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                             vocab_size=64, pad_token_id=0)
        data = [{"input_ids": torch.randint(3, 64, (8,)), "labels": torch.randint(3, 64, (8,))} for _ in range(4)]
        arguments = TrainingArguments(sys.argv[1] + "/out", per_device_train_batch_size=2, max_steps=2, bf16=True,
                                      report_to=[], save_steps=2, gradient_checkpointing=True, disable_tqdm=True)
        trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=data, eval_dataset=data)
        trainer.train()
        trainer.save_model(sys.argv[1] + "/saved")
        model = LlamaForCausalLM.from_pretrained(sys.argv[1] + "/saved", device_map="auto", dtype=torch.bfloat16)
        ids = torch.randint(3, 64, (2, 5), device="cuda")
        for options in ({"do_sample": False}, {"do_sample": True, "top_p": 0.9}, {"num_beams": 3},
                        {"num_beams": 2, "early_stopping": True, "do_sample": True}):
            print(tuple(model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, **options).shape))
        print(transformers.__version__.partition(".")[0], trainer.state.global_step, model.device)
        """,
    )
    assert out.splitlines()[-5:] == ["(2, 8)"] * 4 + ["5 2 cuda:0"]
