// Estimate flow without Python: flow COMPILED.pt2 IMAGE1.ppm IMAGE2.ppm OUTPUT.flo
#include <ATen/ATen.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <cstdlib>
#include <fstream>
#include <iostream>

at::Tensor read_ppm(const std::string& path) {  // (1, 3, H, W) uint8, RGB
  std::ifstream file(path, std::ios::binary);
  std::string kind;
  int64_t width = 0, height = 0, white = 0;
  file >> kind >> width >> height >> white;
  if (!file || kind != "P6" || white != 255 || width < 1 || height < 1)
    throw std::runtime_error(path + " is no binary PPM of 8 bits (P6, without comments)");
  file.get();
  auto image = at::empty({1, height, width, 3}, at::kByte);
  if (!file.read(static_cast<char*>(image.data_ptr()), image.numel()))
    throw std::runtime_error(path + " is cut short");
  return image.permute({0, 3, 1, 2}).contiguous();
}

void write_flo(const std::string& path, const at::Tensor& flow) {  // (1, 2, H, W) float32
  auto pixels = flow[0].permute({1, 2, 0}).contiguous();
  int32_t size[] = {static_cast<int32_t>(pixels.size(1)), static_cast<int32_t>(pixels.size(0))};
  std::ofstream file(path, std::ios::binary);
  file.write("PIEH", 4).write(reinterpret_cast<char*>(size), sizeof size);
  file.write(static_cast<char*>(pixels.data_ptr()), pixels.nbytes());
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

int main(int count, char** words) try {
  if (count != 5) throw std::runtime_error("usage: flow COMPILED.pt2 IMAGE1 IMAGE2 OUTPUT.flo");
  setenv("AOTI_RUNTIME_CHECK_INPUTS", "1", 1);  // else images of another size are read beyond
  torch::inductor::AOTIModelPackageLoader estimator(words[1]);
  auto image1 = read_ppm(words[2]), image2 = read_ppm(words[3]);
  if (image1.sizes() != image2.sizes()) throw std::runtime_error("the images must have one size");
  auto outputs = estimator.run({image1, image2});
  write_flo(words[4], outputs[0]);  // outputs[1] is the confidence
} catch (const c10::Error& error) {
  std::cerr << "error: " << error.what_without_backtrace() << "\n";
  return 2;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << "\n";
  return 2;
}
