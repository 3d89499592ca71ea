/** @file A small U-Net: what it sees on the way down, it needs again on the way up. */
import { cat, nn, type Tensor } from '@pipewright/torch';

/** Two convolutions. */
class Pair extends nn.Module {
  first: nn.Conv2d;
  second: nn.Conv2d;

  constructor(from: number, to: number) {
    super();
    this.first = new nn.Conv2d(from, to, 3, { padding: 1 });
    this.second = new nn.Conv2d(to, to, 3, { padding: 1 });
  }

  forward(x: Tensor): Tensor {
    return this.second.forward(this.first.forward(x).relu()).relu();
  }
}

/** Removes noise from pictures. An ordinary model: nothing in it knows of stages. */
export class Unet extends nn.Module {
  readonly down1: Pair = new Pair(1, 8);
  readonly down2: Pair = new Pair(8, 16);
  readonly bottom: Pair = new Pair(16, 16);
  readonly up2: Pair = new Pair(32, 8);
  readonly up1: Pair = new Pair(16, 8);
  readonly pool: nn.MaxPool2d = new nn.MaxPool2d(2);
  readonly grow: nn.Upsample = new nn.Upsample({ scaleFactor: 2 });
  readonly out: nn.Conv2d = new nn.Conv2d(8, 1, 1);

  forward(picture: Tensor): Tensor {
    const high = this.down1.forward(picture);
    const middle = this.down2.forward(this.pool.forward(high));
    const low = this.bottom.forward(this.pool.forward(middle));
    const back = this.up2.forward(cat([this.grow.forward(low), middle], 1));
    return this.out.forward(this.up1.forward(cat([this.grow.forward(back), high], 1)));
  }
}
