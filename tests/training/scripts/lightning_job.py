"""Lightning as people use it, with nothing for being preempted: accumulation, scheduler, validation, means."""

import os

import lightning.pytorch as pl
import torch
from made_up import Sums, maybe_stop, network, used, write_weights
from torch.utils.data import DataLoader


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def training_step(self, batch, number):
        used(batch["number"])
        maybe_stop(self.global_step)
        loss = (self.net(batch["x"]) - batch["labels"]).square().mean()
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, number):
        self.log("val", (self.net(batch["x"]) - batch["labels"]).square().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "loss"}}


pl.seed_everything(3)
ranks = int(os.environ.get("WORLD_SIZE", "1"))
trainer = pl.Trainer(
    max_epochs=3,
    accelerator="cpu",
    devices=ranks,
    strategy="ddp" if ranks > 1 else "auto",
    accumulate_grad_batches=2,
    val_check_interval=0.5,
    callbacks=[pl.callbacks.EarlyStopping("loss", patience=5, check_on_train_epoch_end=True)],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = Model()
trainer.fit(model, DataLoader(Sums(), 4, shuffle=True), DataLoader(Sums(8, 0.0), 4))
if trainer.is_global_zero:
    write_weights(model)
if ranks > 1:  # with the group open its threads make Python abort now and then as it ends
    torch.distributed.destroy_process_group()
