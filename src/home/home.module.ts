import { Module } from '@nestjs/common';
import { Exercise, WORKER, worker } from './exercise.js';
import { HomeController } from './home.controller.js';

@Module({
  controllers: [HomeController],
  providers: [Exercise, { provide: WORKER, useValue: worker }],
})
export class HomeModule {}
