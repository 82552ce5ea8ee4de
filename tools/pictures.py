"""Pictures of scikit-learn as a file that `armillary train` of a dit reads.

python3 tools/pictures.py digits.safetensors                        1,797 digits of 8 x 8, 10 classes
python3 tools/pictures.py photographs.safetensors --squares 32      two photographs in squares, 2 classes
"""

import argparse
import pathlib

import numpy as np
from safetensors.numpy import save_file
from sklearn.datasets import load_digits, load_sample_images


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Gray pictures; scikit-learn has 17 levels."""
    data = load_digits()
    return (data.images[..., None] * (255 / 16)).round().astype(np.uint8), data.target


def photographs(side: int) -> tuple[np.ndarray, np.ndarray]:
    """Squares of the two photographs, side by side, in red, green and blue."""
    pictures, classes = [], []
    for label, image in enumerate(load_sample_images().images):
        for y in range(0, image.shape[0] - side + 1, side):
            for x in range(0, image.shape[1] - side + 1, side):
                pictures.append(image[y : y + side, x : x + side])
                classes.append(label)
    return np.stack(pictures), np.array(classes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument(
        "--squares", type=int, metavar="SIDE", help="photographs in squares of so many pixels"
    )
    args = parser.parse_args()
    pictures, classes = photographs(args.squares) if args.squares else digits()
    args.file.parent.mkdir(parents=True, exist_ok=True)
    tensors = {"pictures": np.ascontiguousarray(pictures), "classes": classes.astype(np.int64)}
    save_file(tensors, args.file)
    print(f"{len(pictures)} pictures of {pictures.shape[1]} x {pictures.shape[2]} in {args.file}")


if __name__ == "__main__":
    main()
